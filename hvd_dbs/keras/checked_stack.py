"""To import this ends with the cause and the fix where this environment cannot train.

Keras is to train.
"""

from hvd_dbs import keras_stack

keras_stack.require(to_train_keras=True)
