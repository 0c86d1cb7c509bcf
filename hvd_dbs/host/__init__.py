"""What a rank knows of its own host: cores, load, kind of device."""
