"""A micro-batch of a rank as a part of the global batch."""

from __future__ import annotations

import tensorflow as tf

from hvd_dbs.tensorflow.global_batch import GlobalBatch


class MicroBatch(GlobalBatch):
    """What a micro-batch of a step knows of the global batch.

    A micro-batch is to its rank what a rank is to the job: its weight `w_im` is its samples, and
    the weights of a rank's micro-batches add up to the rank's. So its part of a loss `N / D` is
    `N_im / D * (W / w_im)`, and the mean of its gradients with these weights is the rank's
    gradient. Nothing is exchanged here: ranks have different numbers of micro-batches. What all
    denominators D are was asked for before the first micro-batch of the step.

    Args:
        weight: Samples of the micro-batch that count, a scalar.
        total: Samples of all ranks, a scalar.
        num_rows: Rows of the micro-batch, int64 scalar.
        denominators: Those of all ranks by loss, in the order in which the losses ask for them,
            float64, shape `[losses]`; None: they are being asked for, and no loss is right.

    Attributes:
        own_denominators: What the losses of the micro-batch are divided by, in that order.
        misfits: Whether a loss has values that belong to no row.
    """

    def __init__(
        self,
        weight: tf.Tensor,
        total: tf.Tensor,
        num_rows: tf.Tensor,
        denominators: tf.Tensor | None,
    ) -> None:
        super().__init__(weight, total)
        self.own_denominators: list[tf.Tensor] = []
        self.misfits: list[tf.Tensor] = []
        self._num_rows, self._denominators = num_rows, denominators

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Refuses: a sum over ranks needs as many exchanges on each of them.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "A layer adds up numbers of all ranks in the forward pass, as synchronized batch "
            "normalization does, but ranks compute different numbers of micro-batches. Leave out "
            "micro_batch_size, or use a layer that looks at each sample alone, such as "
            "LayerNormalization or GroupNormalization."
        )

    def loss_factor(self, denominator: tf.Tensor) -> tf.Tensor:
        """What the micro-batch's mean loss is multiplied by; see `GlobalBatch`."""
        with tf.device("CPU"):
            own = self._counted(tf.cast(denominator, tf.float64))
            place = len(self.own_denominators)
            self.own_denominators.append(own)
            if self._denominators is None:
                return tf.ones([], tf.float64)
            of_all = self._denominators[place]
            return tf.math.divide_no_nan(own * self.total, of_all * self.weight)

    @property
    def counts_samples(self) -> bool:
        """Whether weights are numbers of samples."""
        return True

    def check_rows(self, num_rows: tf.Tensor) -> None:
        """Notes whether values, so many, are not as many for each row."""
        self.misfits.append(num_rows % tf.maximum(self._num_rows, 1) != 0)

    @property
    def is_misfit(self) -> tf.Tensor:
        """Whether any loss has values that belong to no row."""
        return tf.reduce_any(tf.stack([tf.constant(False), *self.misfits]))
