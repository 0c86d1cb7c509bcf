"""The learning rate of a job whose global batch size changes."""
