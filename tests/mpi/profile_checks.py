"""What a training learns of kinds of device serves the next one. Run on 3 ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hvd_dbs.keras as hvd
from hvd_dbs.job import places
from hvd_dbs.job.profile_file import read_profile
from tests.mpi.problems import SEED, compile_model, fit, flat, images, model, sgd
from tests.mpi.together import captured, new_folder, on_last_rank, shared

B = 33  # 18, 9 and 6 samples take as long.
DEVICES = ("fast device", "middling device", "slow device")
SECONDS = {"fast device": 1.0, "middling device": 2.0, "slow device": 3.0}
"""Of a sample."""


def _new_path():
    """A file of rank 0, in a folder of its own; the others would not find it."""
    return new_folder() / "cluster.json"


class ranks_on:  # noqa: N801
    """Ranks compute on these devices, as far as balancers made inside can see."""

    def __init__(self, *devices):
        self._device = devices[hvd.rank() % len(devices)]

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(places, "device_kind", lambda: self._device)
        return self

    def __exit__(self, *exception):
        self._patch.undo()

    def balancer(self, *arguments, **options):
        """Its clock shows what the rank's device takes."""
        balancer = hvd.Balancer(*arguments, **options)
        seconds, drain = SECONDS[self._device], balancer.clock.drain

        def given_drain():
            times = drain()
            busy = np.where(np.isnan(times.busy_seconds), np.nan, seconds * times.num_samples)
            return replace(times, busy_seconds=busy)

        balancer.clock.drain = given_drain
        return balancer


def _train(balancer, epochs=2, net=None):
    """The plans of the epochs."""
    net = model() if net is None else net
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(4 * B + 5), shuffle_seed=SEED)
    plans, begin_epoch = [], balancer.loop.begin_epoch

    def noting(epoch):
        begin_epoch(epoch)
        plans.append(balancer.loop.agreed_plan.batch_sizes)

    balancer.loop.begin_epoch = noting
    fit(net, balancer, dataset, epochs=epochs)
    return plans


def check_the_second_training_starts_balanced():
    path = _new_path()
    size = hvd.size()
    with ranks_on(*DEVICES) as ranks:
        even, balanced = _train(ranks.balancer(B, "dbs", profile=path))
        assert even == (B // size,) * size
        first = ranks.balancer(B, "dbs", profile=path)
        assert first.plan.batch_sizes == even  # Its model is not known yet.
        with captured("hvd_dbs") as records:
            assert _train(first) == [balanced, balanced]
        texts = [text for record in records if "earlier trainings" in (text := record.getMessage())]
        assert len(texts) == (hvd.rank() == 0)
    # The same kinds of device on other ranks, and other bounds.
    with ranks_on(*DEVICES[::-1]) as ranks:
        assert _train(ranks.balancer(B, "dbs", profile=path))[0] == balanced[::-1]
        bounded = ranks.balancer(B, "dbs", profile=path, max_batch_size={"fast*": 12, "*": B})
        assert _train(bounded, epochs=1)[0][-1] == 12
    # Another model is another entry.
    with ranks_on(*DEVICES) as ranks:
        other = model(batch_norm=True)
        balancer = ranks.balancer(B, "dbs", profile=path)
        assert _train(balancer, epochs=1, net=other) == [even]


def check_training_that_goes_on_does_not_start_anew_from_the_profile():
    path = _new_path()
    with ranks_on(*DEVICES) as ranks:
        _train(ranks.balancer(B, "dbs", profile=path))
        first = hvd.Balancer(B, "dbs")
        _train(first, epochs=1)
        state = first.gather_state_dict()
        second = ranks.balancer(B, "dbs", profile=path)
        second.load_state_dict(state)
        plan = second.plan.batch_sizes
        compiled = model()
        compile_model(compiled, sgd(second))
        seen = []
        begin_epoch = second.loop.begin_epoch
        second.loop.begin_epoch = lambda epoch: (
            begin_epoch(epoch),
            seen.append(second.loop.agreed_plan.batch_sizes),
        )
        dataset = second.dataset(images(4 * B + 5), shuffle_seed=SEED)
        fit(compiled, second, dataset, epochs=2)
        assert seen == [plan]


def check_a_profile_changes_nothing_of_what_is_learned_and_its_loss_nothing():
    path = _new_path()
    nets = [model(), model(), model()]
    with ranks_on(*DEVICES) as ranks:
        _train(ranks.balancer(B, "dbs", profile=path), net=nets[0])
        _train(ranks.balancer(B, "dbs", profile=path), net=nets[1])
        balancer = ranks.balancer(B, "dbs", profile=path)
        shared("")
        if hvd.rank() == 0:
            path.write_text("damaged")
        with captured("hvd_dbs") as records:
            plans = _train(balancer, net=nets[2])
        assert len(set(plans[0])) == 1 and plans[1] != plans[0]
        texts = [text for record in records if "profile" in (text := record.getMessage())]
        assert len(texts) == (hvd.rank() == 0)
    assert hvd.rank() != 0 or path.read_text() == "damaged"
    for net in nets[1:]:
        np.testing.assert_allclose(flat(net), flat(nets[0]), atol=1e-6)


def check_a_profile_that_cannot_be_is_an_error_on_all_ranks():
    path = _new_path()
    with pytest.raises(ValueError, match=r"missing is no folder that this process may write to"):
        hvd.Balancer(B, profile=path.parent / "missing" / "cluster.json")
    with pytest.raises(TypeError, match="profile=7; expected the path of a file"):
        hvd.Balancer(B, profile=7)
    with pytest.raises(ValueError, match="profile='' is empty"):
        hvd.Balancer(B, profile="")
    if hvd.rank() == 0:
        path.write_text("{}")
    with pytest.raises(ValueError, match="is not a file that hvd_dbs wrote"):
        hvd.Balancer(B, profile=path)
    with pytest.raises(ValueError, match="there is a profile differs between ranks: True on"):
        hvd.Balancer(B, profile=on_last_rank(None, path))


def check_a_loop_of_ones_own_names_its_model():
    path = _new_path()
    with ranks_on(*DEVICES) as ranks:
        for name, is_known in (("one", False), ("one", True), ("other", False)):
            balancer = ranks.balancer(B, "dbs", profile=path)
            net = model()
            optimizer = sgd(balancer)
            dataset = balancer.dataset(images(2 * B), shuffle_seed=SEED)
            balancer.loop.begin_training(model=name)
            assert (len(set(balancer.plan.batch_sizes)) > 1) == is_known
            balancer.loop.begin_epoch(0)
            for step, (x, _) in enumerate(dataset, start=1):
                variables = net.trainable_variables
                gradients = _gradients(net, x)
                optimizer.apply(gradients, [v.value for v in variables])
                balancer.loop.end_steps(step)
            balancer.loop.end_epoch()
            balancer.loop.end_training()
    if hvd.rank() == 0:
        assert set(read_profile(path, "other", B).speeds) == {f"{d}, {_cores()}" for d in DEVICES}


def _gradients(net, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(x) ** 2)
    return tape.gradient(loss, net.trainable_variables)


def _cores():
    return places.own_place().speed_class.rpartition(", ")[2]
