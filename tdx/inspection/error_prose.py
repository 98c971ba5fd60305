"""What the errors of tdx mean, for ``tdx explain``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorProse:
    """The explanation of an error.

    Args:
        why: what it means and what to do, in prose.
        wrong: a command that ends with it.
        right: the same command, mended.
    """

    why: str
    wrong: str | None = None
    right: str | None = None

    @property
    def paragraphs(self) -> list[str]:
        """The prose, one line for each paragraph."""
        return [" ".join(part.split()) for part in self.why.strip().split("\n\n")]


ERROR_PROSE: dict[str, ErrorProse] = {
    "TDX000": ErrorProse(
        """
        The root of all errors of tdx; in Python `except TdxError` catches every one of them. On the
        command line it also stands for an error that tdx did not foresee: `--debug` shows where it
        happened.
        """
    ),
    "TDX101": ErrorProse(
        """
        A value does not fit the argument: another type than the declared one, out of its range, or
        one that does not go with another argument. The message names the argument, and what it
        takes.

        `tdx show transform NAME` lists the arguments of a transform with their types.
        """,
        "tdx check --env Pendulum-v1 --t 'StepCounter(max_steps=0)'",
        "tdx check --env Pendulum-v1 --t 'StepCounter(max_steps=200)'",
    ),
    "TDX102": ErrorProse(
        """
        An entry is not where it was looked for, such as an in-key that the env does not write. The
        hint has the nearest key, or those that are there.

        `tdx inspect spec --stages` shows which keys there are at each place of the chain.
        """,
        "tdx inspect spec --env Pendulum-v1 --t 'CatFrames(4, dim=-1)'",
        """tdx inspect spec --env Pendulum-v1
--t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
    ),
    "TDX103": ErrorProse(
        """
        A name of a transform, an argument, an option, a column or a value that does not exist. The
        hint has the nearest right spelling.
        """,
        "tdx check --env Pendulum-v1 --t StepCouter",
        "tdx check --env Pendulum-v1 --t StepCounter",
    ),
    "TDX201": ErrorProse(
        """
        A spec cannot be built or combined as it was asked for, or a value lies outside of it:
        bounds the wrong way round, shapes that do not broadcast, an action that the env does not
        take.
        """
    ),
    "TDX202": ErrorProse(
        """
        A transform cannot work at its place in the chain: it would write a key that is taken, needs
        whole episodes, or drops what the env needs. A transform of your own that raises in a step
        is reported like this too. The message names the stage.
        """,
        """tdx check --env Pendulum-v1 --t Reward2GoTransform""",
        "tdx check --env Pendulum-v1 --t RewardSum",
    ),
    "TDX203": ErrorProse(
        """
        A pipeline file or the text of `--t` cannot be read: YAML or brackets that do not close, a
        section that does not exist, a file that is not there. The message has the line and column.

        `tdx schema` prints a JSON Schema with which an editor finds this while you type.
        """,
        "tdx check --env Pendulum-v1 --t 'StepCounter(max_steps=200'",
        "tdx check --env Pendulum-v1 --t 'StepCounter(max_steps=200)'",
    ),
    "TDX204": ErrorProse(
        """
        A pipeline is data. One that names a Python object as `module:name` makes tdx import that
        module, which runs its code, so this happens only where you say so with `--allow-code`.
        """,
        "tdx check --env Pendulum-v1 --t my_code:MyTransform",
        "tdx check --env Pendulum-v1 --t my_code:MyTransform --allow-code",
    ),
    "TDX205": ErrorProse(
        """
        What a reset or a step returned does not keep what the specs promise: another shape, dtype
        or device, a value out of its bounds, not-a-number. The finding names the stage whose result
        shows it first, or the env.

        Mend the spec where the data is right, or the data where the spec is.
        """
    ),
    "TDX301": ErrorProse(
        """
        The environment itself raised an error while it was made, reset or stepped, or it needs an
        argument. The message has what it said; `--env-kwargs` passes arguments to it.
        """,
        "tdx check --env Pendulum-v1 --env-kwargs 'gravity=9.8'",
        "tdx check --env Pendulum-v1 --env-kwargs 'g=9.8'",
    ),
    "TDX302": ErrorProse(
        """
        No environment of that id is registered with Gymnasium or native to tdx. `tdx list envs`
        shows those there are, and the package that another one needs.
        """,
        "tdx check --env Pendulm-v1",
        "tdx check --env Pendulum-v1",
    ),
    "TDX303": ErrorProse(
        """
        A package is needed that is not installed, such as `ale-py` for Atari or `mujoco` for
        robots. The hint has the command that installs it.
        """
    ),
    "TDX304": ErrorProse(
        """
        The device is not on this machine, or it cannot do what was asked, such as doubles on `mps`.
        The hint lists the devices there are.
        """
    ),
    "TDX305": ErrorProse(
        """
        A worker process of `ParallelEnv` raised an error, died or hung. The message has the
        worker's own error. `--batching serial` runs the same envs in one process, where errors are
        easier to follow.
        """
    ),
    "TDX306": ErrorProse(
        """
        A worker process of `ParallelEnv` did not answer in time. Its env may be slow to start, wait
        for something, or be stuck.
        """
    ),
    "TDX307": ErrorProse(
        """
        What was to be written cannot be written: standard output is closed, or the disk behind it
        is full.
        """
    ),
    "TDX308": ErrorProse(
        """
        A disk is full, or a stored file cannot be read, written or understood.
        """
    ),
}
