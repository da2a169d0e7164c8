"""Supervised warm start: imitation of an environment's expert with the learner's optimizer."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_shares, name_member_keys
from gigpo_jax.core.errors import InputError, storage_errors
from gigpo_jax.core.files import check_writable
from gigpo_jax.devices.exchange import local_rows
from gigpo_jax.devices.mesh import learner_mesh
from gigpo_jax.env_bridge.types import IMAGE, EnvError
from gigpo_jax.envs import registry
from gigpo_jax.learner.samples import Sample
from gigpo_jax.models.files.save_weights import check_target
from gigpo_jax.models.text.continuation import continue_response
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import split_words
from gigpo_jax.models.vision.images import token_grid
from gigpo_jax.models.vision.vision_config import VisionConfig
from gigpo_jax.modes.imitation import Imitation
from gigpo_jax.modes.model_folder import fresh_policy, save_policy
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.demonstrations import Demonstration, demonstrate_episode, episode_seed
from gigpo_jax.rollout.draws import draw_tasks
from gigpo_jax.rollout.environment import all_tasks, episode_settings, list_environments
from gigpo_jax.rollout.pictures import check_length, check_modality
from gigpo_jax.rollout.prompt_changes import summary_limit
from gigpo_jax.rollout.prompt_encoding import prompt_encoder, prompt_images
from gigpo_jax.run import report
from gigpo_jax.run.hosts import Hosts, HostsStopped, Stop, open_hosts
from gigpo_jax.run.loggers.loggers import find_loggers
from gigpo_jax.run.open_policy import open_policy
from gigpo_jax.run.progress import show_progress, show_stage
from gigpo_jax.run.tracking import track
from gigpo_jax.run.workdir import claim_workdir, open_workdir, record_machine


def run(config: ConfigDict, workdir: Path, out: str) -> int:
    """Trains on demonstrations and writes a Hugging Face folder.

    Args:
      config: Config as from `config.resolve`.
      workdir: Folder of the run.
      out: Folder of the model; default WORKDIR/model.

    Returns:
      The exit status: 0 done, 1 the environment failed the expert, or as from `Imitation.run`.
    """
    hosts = open_hosts()
    try:
        with hosts.stopping(), open_workdir(workdir, config):
            return _imitate(config, workdir, out, hosts)
    except HostsStopped as stopped:
        report.say(stopped.stop.text)
        return stopped.stop.status


def _imitate(config: ConfigDict, workdir: Path, out: str, hosts: Hosts) -> int:
    target = Path(out) if out else workdir / "model"
    check_target(target)
    check_writable(target.parent, "--out")
    mesh = learner_mesh(config)
    local_rows(mesh, config.batch.rows)
    loggers = find_loggers(config)
    # A new model is made later: its tokenizer has the words of the demonstrations.
    policy = open_policy(config, workdir, mesh, samples=False) if config.model.path else None
    reads_images = _reads_images(config, policy)
    if reads_images and config.sft.learn_prompts:
        raise InputError(
            "prompts with pictures cannot be predicted",
            key="config.sft.learn_prompts",
            value="True",
            fix="leave it out",
        )

    try:
        demonstrations = play_demonstrations(
            config,
            _prompt_measure(policy, reads_images=reads_images),
            _response_measure(policy, config),
        )
    except EnvError as error:
        stop = Stop(1, f"stopped while the expert played: {error}", saves=False)
        report.say((hosts.agree(stop) or stop).text)
        return 1
    won = np.mean([demonstration.won for demonstration in demonstrations])
    report.say(f"{len(demonstrations)} demonstrations, {100 * won:.1f}% of them successful")
    if policy is None:
        with show_stage("drawing a new model"):
            policy = fresh_policy(config, mesh, demonstrated_texts(demonstrations))
    episodes = encode_demonstrations(demonstrations, policy, config)
    del demonstrations  # their images may be large
    if not any(episodes):
        raise InputError(
            "every demonstrated response is longer, so there is nothing to learn from",
            key="config.sampling.max_response_tokens",
            value=config.sampling.max_response_tokens,
            fix="make it larger",
        )

    imitation = Imitation(config, policy, mesh, episodes, workdir)
    claim_workdir(workdir, config, policy.base)
    record_machine(workdir, imitation.done)
    imitation.writer.open_loggers(loggers, config)
    status = imitation.run(hosts)
    if status:
        return status
    with storage_errors(target):
        save_policy(target, config, policy, imitation.state.params)
    report.say(f"the model is in {target}")
    return 0


def _reads_images(config: ConfigDict, policy: Policy | None) -> bool:
    if policy is None:
        return config.model.shape.vision.depth > 0
    return policy.config.vision is not None


def _prompt_measure(policy: Policy | None, *, reads_images: bool) -> Callable[..., Sequence[int]]:
    """Builds a function prompt -> token ids, to measure prompts.

    The tokenizer of a new model is made from these prompts. So for a new model all ids are 0: one
    for each word of a text alone, which may be cut later, and exactly as many as the tokenizer will
    give for a prompt with pictures.
    """
    if policy is not None:
        return prompt_encoder(policy.tokenizer, policy.config.vision)

    def encode(
        text: str,
        images: Sequence[np.ndarray] = (),
        *,
        system: str = "",
        response: Sequence[int] | None = None,
    ) -> Sequence[int]:
        if images or response is None:
            check_modality(images, reads_images=reads_images)
        if (response is not None or system) and not images:
            return [0] * _count_words(text, system, response)
        text = f"{system} {text}"
        if not images:
            return [0] * len(text.split())
        words = len(split_words(text.replace(IMAGE, " ")))
        # A token before and one after each image, <bos> and <sep> around the prompt.
        image_tokens = sum(math.prod(token_grid(VisionConfig(), image)) + 2 for image in images)
        return [0] * (2 + words + image_tokens)

    return encode


def _count_words(text: str, system: str, response: Sequence[int] | None) -> int:
    """Counts the words of a conversation's message, which are the tokens of a new model.

    The arguments are the same as for the `encode` of `prompt_building.build_prompt`.
    """
    # <bos> and <sep> around each message; the end of a turn is the last token of its response.
    messages = [text, system] if system else [text]
    tokens = sum(2 + len(split_words(message)) for message in messages)
    return tokens + (response is not None and not len(response))


def _response_measure(policy: Policy | None, config: ConfigDict) -> Callable[[str], Sequence[int]]:
    """Builds a function response -> token ids, to measure responses; for a new model all are 0.

    A new model has one token for each word, and one for the end.
    """
    if policy is None:
        return lambda response: [0] * (len(split_words(response)) + 1)
    tokenizer = policy.tokenizer
    end = response_end(tokenizer, config)
    return lambda text: [*encode_response(tokenizer, text), *end]


def play_demonstrations(
    config: ConfigDict,
    encode: Callable[..., Sequence[int]],
    encode_response: Callable[[str], Sequence[int]],
) -> list[Demonstration]:
    """Plays `sft.episodes` training episodes with the environment's expert.

    Args:
      config: Config as from `config.resolve`.
      encode: Function that measures prompts; see `prompt_building.build_prompt`.
      encode_response: Function that measures responses, for the prompts of conversations.

    Raises:
      EnvError: the environment failed; nothing replaces its episode.
      InputError: the environment shows pictures that the model cannot read, or none to a model that
        reads them.
    """
    environments = {environment.label: environment for environment in list_environments(config)}
    # Every host plays all of them: the word tokenizer and the order of samples must be equal on
    # each.
    tasks = draw_tasks(
        all_tasks(list(environments.values())),
        0,
        config.sft.episodes,
        config.seed,
        shares=member_shares(config),
    )
    demonstrations = []
    with contextlib.ExitStack() as resources:
        envs = {}
        settings = {}
        for label, environment in environments.items():
            envs[label] = resources.enter_context(contextlib.closing(environment.make()))
            settings[label] = episode_settings(
                environment.config, temperature=0.0, stop_token_ids=()
            )
        progress = show_progress("demonstrations", total=len(tasks), unit="episodes")
        bar = resources.enter_context(progress)
        for number, task in enumerate(tasks):
            label = task.environment
            member = environments[label].config
            with name_member_keys(label):
                expert = registry.make_expert(
                    member.env.name, episode_seed(config.seed, number), **member.sft.demonstrator
                )
                demonstration = demonstrate_episode(
                    envs[label],
                    expert,
                    task,
                    settings[label],
                    encode=encode,
                    encode_response=encode_response,
                    write=registry.spec(member.env.name).write,
                )
            demonstrations.append(demonstration)
            bar.update()
    return demonstrations


def demonstrated_texts(demonstrations: Iterable[Demonstration]) -> list[str]:
    """Every text of the demonstrations, for a word-level tokenizer."""
    texts = []
    for demonstration in demonstrations:
        for turn in demonstration.turns:
            texts += [turn.prompt.replace(IMAGE, " "), turn.response]
    return texts


def encode_demonstrations(
    demonstrations: Sequence[Demonstration], policy: Policy, config: ConfigDict
) -> list[list[Sample]]:
    """Encodes the turns of each episode as samples, but leaves out turns with a long response.

    The limit is `sampling.max_response_tokens`; a summary has a limit of its own.

    Raises:
      InputError: a prompt with images is too long.
    """
    tokenizer = policy.tokenizer
    vision = policy.config.vision
    limit = config.sampling.max_prompt_tokens
    encode = prompt_encoder(tokenizer, vision)
    response_ending = response_end(tokenizer, config)
    episodes = []
    for demonstration in track(demonstrations, "encoding", unit="episodes"):
        samples = []
        targets = []
        for turn in demonstration.turns:
            # No stop string ends a summary.
            end = tokenizer.stop_token_ids[:1] if turn.is_text else response_ending
            response = encode_response(tokenizer, turn.response)
            targets.append(np.asarray([*response, *end], np.int32))
        prompts = _encode_prompts(demonstration, targets, encode)
        for turn, target, tokens in zip(demonstration.turns, targets, prompts, strict=True):
            images = turn.images
            check_length(tokens, images, limit)
            longest = config.sampling.max_response_tokens
            if turn.is_text:
                longest = summary_limit(config.sampling)
            if len(target) > longest:
                continue
            sample = Sample(
                # From the left, as `prompt_building.fit_prompt` cuts.
                np.asarray(tokens, np.int32)[-limit:],
                target,
                # Behaviour log-probabilities, which the cross-entropy does not read.
                np.zeros(len(target), np.float32),
                images=prompt_images(vision, tokens, images),
            )
            samples.append(sample)
        episodes.append(samples)
    return episodes


def _encode_prompts(
    demonstration: Demonstration, targets: Sequence[np.ndarray], encode: Callable[..., list[int]]
) -> Iterator[list[int]]:
    """Token ids of each turn's prompt; the responses in a conversation are the targets."""
    # Of the turn before: its prompt, and the number of its exchanges.
    tokens: list[int] = []
    length = 0
    for number, turn in enumerate(demonstration.turns):
        if not turn.exchanges:
            yield encode(turn.prompt, turn.images)
            continue
        exchanges = len(turn.exchanges)
        # Nothing was dropped since the turn before: only its response and one message are new.
        first_new = exchanges - 1 if exchanges == length + 1 else 0
        for place in range(first_new, exchanges):
            pair = turn.exchanges[place]
            if place == 0:
                images = (*pair.system_images, *pair.images)
                tokens = encode(pair.text, images, system=pair.system)
            else:
                response = targets[number - exchanges + place].tolist()
                rest = encode(pair.text, pair.images, response=response)
                tokens = [*tokens, *response, *rest]
        length = exchanges
        yield tokens


def encode_response(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the ids of a whole response, behind the text that the generation prompt opens.

    Special tokens in it lose their meaning, as in prompts: an action has names of the environment.
    """
    return tokenizer.encode(tokenizer.break_text(continue_response(tokenizer, text), "", ""))


def response_end(tokenizer: Tokenizer, config: ConfigDict) -> tuple[int, ...]:
    """The token after a demonstrated response; () if `sampling.stop` has stop strings.

    A stop string is part of the response's text. Without stop strings the model has to learn the
    end-of-sequence token, or its responses would go on to the limit.
    """
    return () if config.sampling.stop else tokenizer.stop_token_ids[:1]
