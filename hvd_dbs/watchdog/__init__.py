"""Which rank keeps a job from making progress, and how ranks leave a job."""
