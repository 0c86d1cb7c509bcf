"""From time curves to a plan; one method a file."""
