"""What the ramp of the learning rate does to loss and accuracy when ranks come and go."""
