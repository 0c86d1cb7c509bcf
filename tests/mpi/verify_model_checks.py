"""`hvd-dbs verify --model` passes models as Keras's guides train them, and finds planted errors."""

from __future__ import annotations

from click.testing import CliRunner

from hvd_dbs.cli.main import main
from tests.mpi.together import shared

GUIDES, PLANTED = "tests.mpi.guide_models", "tests.mpi.planted_errors"

WEIGHTS = "weights as of one process"
LAYER = "gives another output for a sample"
LOSS = "the loss of a global batch is"
GRADIENT = "the ranks' gradients weighted by samples differ"


def verify(name, *options):
    """The output of a run, and its exit code."""
    result = CliRunner().invoke(main, ["verify", "--model", name, *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return (shared(result.output) if result.exit_code < 2 else result.output), result.exit_code


def passes(name):
    output, code = verify(f"{GUIDES}:{name}")
    assert code == 0, output
    assert f"ok      {WEIGHTS}" in output, output
    assert "cause" not in output, output


def finds(name, *texts):
    output, code = verify(f"{PLANTED}:{name}")
    assert code == 1, output
    assert f"FAILED  {WEIGHTS}" in output, output
    causes = [line for line in output.splitlines() if line.startswith("cause")]
    assert len(causes) == 1, output
    assert all(text in causes[0] for text in texts), output


def check_a_transformer_passes():
    passes("transformer")


def check_a_language_model_passes():
    passes("language_model")


def check_images_with_synchronized_statistics_pass():
    passes("images")


def check_a_gan_passes():
    passes("gan")


def check_a_vae_passes():
    passes("vae")


def check_a_translation_passes():
    passes("translation")


def check_structured_data_pass():
    passes("structured")


def check_lora_passes():
    passes("lora")


def check_two_weighted_outputs_pass():
    passes("weighted")


def check_a_layer_of_a_language_model_is_found():
    finds("language_model_layer", LAYER, "scale_by_valid")


def check_a_loss_of_a_language_model_is_found():
    finds("language_model_loss", LOSS, "not a mean over")


def check_a_layer_for_structured_data_is_found():
    finds("structured_layer", LAYER, "scale_by_valid")


def check_a_sum_for_structured_data_is_found():
    finds("structured_loss", LOSS, "looks like a sum")


def check_a_layer_of_a_gan_is_found():
    finds("gan_layer", LAYER, "centre_on_batch")


def check_a_loss_of_a_gan_is_found():
    finds("gan_loss", GRADIENT, "a loss in train_step")


def check_a_layer_of_a_vae_is_found():
    finds("vae_layer", LAYER, "scale_by_valid")


def check_a_loss_of_a_vae_is_found():
    finds("vae_loss", GRADIENT, "a loss in train_step")


def check_a_layer_of_lora_is_found():
    finds("lora_layer", LAYER, "centre_on_batch")


def check_a_loss_of_lora_is_found():
    finds("lora_loss", LOSS, "not a mean over")


def check_unsynchronized_statistics_are_found():
    finds("unsynchronized", "synchronized=True")


def check_a_layer_that_sums_over_all_ranks_passes():
    output, code = verify(f"{PLANTED}:repaired")
    assert code == 0, output


def check_random_numbers_cannot_be_compared():
    output, code = verify(f"{PLANTED}:noisy")
    assert code == 1, output
    assert "FAILED  weights can be compared: one process itself learns something else" in output
    assert "noise" in output.partition("cause ")[2].partition(" drew random numbers")[0], output
    assert WEIGHTS not in output, output


def check_what_fails_on_one_rank_is_one_sentence_on_all():
    for name, expected in [
        ("fails_on_last_rank", "on rank 1: the function fails: OSError: no such file: weights.h5."),
        ("other_model_on_last_rank", "a model with other weights on rank 1 than on rank 0."),
        ("other_data_on_last_rank", "sample 0 is another one than on rank 0"),
    ]:
        output, code = verify(f"{PLANTED}:{name}")
        assert code == 2, output
        assert expected in output, output
        assert len([line for line in output.splitlines() if line.startswith("Error")]) == 1


def check_more_ranks_than_samples_in_a_step_are_refused():
    output, code = verify(f"{GUIDES}:lora", "--batch", "1")
    assert code == 2, output
    assert "global_batch_size=1" in output, output
