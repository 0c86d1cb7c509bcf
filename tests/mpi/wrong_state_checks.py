"""States that are damaged or do not fit are errors that change nothing. Run on 3 ranks."""

from __future__ import annotations

import json
import resource

import numpy as np
import pytest

import hvd_dbs.keras as hvd
from tests.mpi.problems import (
    SEED,
    compile_model,
    fit,
    flat,
    images,
    model,
    scripted,
    sgd,
    some_plans,
)
from tests.mpi.together import captured, meet, new_folder, on_last_rank

B = 16


def check_training_that_cannot_go_on_so_says_why():
    balancer = hvd.Balancer(B, "even")
    balancer.dataset(np.arange(5 * B), shuffle_seed=SEED)
    state = {**balancer.state_dict(), "epoch": 2, "used": [[0, B]]}
    for source, seed, text in (
        (np.arange(4 * B), SEED, r"num_samples=64 instead of 80"),
        (np.arange(5 * B), SEED + 1, r"shuffle_seed=8 instead of 7"),
    ):
        other = hvd.Balancer(B, "even")
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=text):
            other.dataset(source, shuffle_seed=seed)
        other = hvd.Balancer(B, "even")
        other.dataset(source, shuffle_seed=seed)
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
    for used, text in (
        ([[0, 6 * B]], "positions up to 96 are used"),
        ([[0, 5 * B]], "no sample is left of epoch 2"),
        ([[4, 2]], "intervals in ascending order"),
        ([[0, 2], [2, 4]], "do not touch"),
        ([[0]], "not a pair of positions"),
    ):
        with pytest.raises(ValueError, match=text):
            balancer.load_state_dict({**state, "used": used})
    balancer.load_state_dict(state)
    balancer.loop.begin_training()
    with pytest.raises(ValueError, match=r"begins with epoch 0 .* go on in epoch 2"):
        balancer.loop.begin_epoch(0)
    balancer.loop.begin_epoch(2)
    assert balancer.loop.position.num_steps_in_epoch == 4
    balancer.loop.end_training()


def check_state_survives_json_and_wrong_states_change_nothing():
    balancer = hvd.Balancer(B, scripted(some_plans(B)))
    net = model()
    compile_model(net, sgd(balancer))
    fit(net, balancer, balancer.dataset(images(48), shuffle_seed=SEED), epochs=2)
    state = json.loads(json.dumps(balancer.state_dict(), allow_nan=False))
    restored = hvd.Balancer(B, scripted(some_plans(B)))
    restored.load_state_dict(state)
    assert restored.plan == balancer.plan
    assert restored.state_dict() == balancer.state_dict()

    fresh = hvd.Balancer(B, scripted(some_plans(B)))
    before = fresh.state_dict()
    for wrong in ({}, {**state, "format": 1}, hvd.Balancer(B, "even").state_dict(), None):
        # Wrong on one rank only is as wrong as on all.
        with pytest.raises(ValueError, match="not a state of this balancer"):
            fresh.load_state_dict(on_last_rank(wrong, state))
        assert fresh.state_dict() == before


def check_a_damaged_training_state_is_an_error_on_all_ranks():
    folder = new_folder()

    def train(seed=SEED, net=None, epochs=1):
        balancer = hvd.Balancer(B, scripted(some_plans(B)))
        net = net or model()
        compile_model(net, sgd(balancer))
        dataset = balancer.dataset(images(48), shuffle_seed=seed)
        saving = hvd.callbacks.TrainingStateCallback(folder, balancer)
        fit(net, balancer, dataset, epochs, callbacks=[saving])
        return net, balancer

    trained, _ = train(epochs=2)
    with captured("hvd_dbs.job.position") as records:
        net, balancer = train(epochs=2)  # Nothing is left to do.
    assert ["goes on in epoch 2" in one.getMessage() for one in records] == [True][hvd.rank() :]
    np.testing.assert_array_equal(flat(net), flat(trained))
    assert balancer.cursor.epoch == 2
    state = folder / "training_state.json"
    good = state.read_text()
    weights = folder / json.loads(good)["state"]["weights"]
    good_weights = weights.read_bytes()
    meet()
    damages = [
        (lambda: state.write_text(good[:-9]), "cut short"),
        (lambda: state.write_text(good.replace("scripted", "even")), "checksum"),
        (lambda: state.write_text("{}"), "not a file that hvd_dbs wrote"),
        (lambda: weights.write_bytes(good_weights[:-7]), "does not hold what was saved"),
        (weights.unlink, "cannot be read"),
    ]
    for damage, text in damages:
        if hvd.rank() == 0:
            damage()
        meet()
        with pytest.raises(ValueError, match=text):
            train(epochs=3)
        if hvd.rank() == 0:
            state.write_text(good)
            weights.write_bytes(good_weights)
        meet()
    with pytest.raises(ValueError, match=r"state\.json cannot .*: .*shuffle_seed=9 instead of 7"):
        train(seed=9, epochs=3)

    # A full disk: the old state is kept, training goes on, and it is said once.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hvd.rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with captured("hvd_dbs") as records:
            net, balancer = train(epochs=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert balancer.cursor.epoch == 4
    said = [record for record in records if "cannot be saved" in record.getMessage()]
    assert len(said) == (hvd.rank() == 0)
    meet()
    assert state.read_text() == good
    net, balancer = train(epochs=2)
    np.testing.assert_array_equal(flat(net), flat(trained))


def check_a_loop_that_goes_on_after_its_last_epoch_says_so():
    balancer = hvd.Balancer(B, "even")
    dataset = balancer.dataset(np.arange(5 * B))
    balancer.load_state_dict({**balancer.state_dict(), "epoch": 2})
    with captured("hvd_dbs.job.position") as records:
        assert list(balancer.epochs(dataset, 2)) == []
        assert list(balancer.epochs(dataset, 0)) == []  # As the script says.
    assert ["Nothing is trained" in one.getMessage() for one in records] == [True][hvd.rank() :]


def check_a_folder_that_cannot_be_is_an_error_on_all_ranks():
    folder = new_folder() / "file"
    if hvd.rank() == 0:
        folder.write_text("")
    balancer, net = hvd.Balancer(B, "even"), model()
    compile_model(net, sgd(balancer))
    dataset = balancer.dataset(images(48), shuffle_seed=np.int64(SEED))
    saving = hvd.callbacks.TrainingStateCallback(folder, balancer)
    with pytest.raises(ValueError, match=r"cannot be saved in .*file: .*Give"):
        fit(net, balancer, dataset, 1, callbacks=[saving])
