"""What each Python process of a job begins with: garbage is collected less often.

Python runs this by itself, since the folder is on the path of jobs. TensorFlow makes objects by the
hundred thousand, nearly all of which stay, and looking through them takes a sixth of the processor
time of loading it.
"""

import gc

gc.set_threshold(50_000, 20, 100)
