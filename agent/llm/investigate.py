"""The investigation loop: DSPy ReAct steps over the toolbox until it stops, finishes, or has nothing readable to say.

Errors are observations. A step that cannot be read, or names no tool, costs a step and tells the model how to go on;
too many in a row, or too many steps without a proposal, end the loop. The trajectory in the prompt is cut from its old
end, to the tokens that are free before each call and by half when the context window is exceeded all the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm import failures
from agent.llm.failures import LlmFailure, TooLong
from agent.llm.inputs import compact
from agent.llm.planner import Ask
from agent.llm.proposals import FINISH, TOOL_NAMES, ToolArguments
from agent.llm.tools import Answer, Stop, Toolbox

MAX_FAULTS = 4  # unreadable steps in a row
MAX_IDLE = 10  # steps in a row that propose nothing new
MAX_OVERFLOWS = 4  # halvings of the trajectory in a row
STEPS_SHOWN = 30  # of the trajectory; older ones are in the trials and the notes
SMALLEST_ROOM = 250  # tokens of trajectory that a prompt must have room for: a step and what came of it
TRAJECTORY_SHARE = 1 / 3  # of a prompt kept for the trajectory, where the other inputs can be fitted in the rest
FINISH_IS_IDLE = 4  # idle steps that giving up before any proposal counts for
TOO_EARLY = "nothing was proposed yet: evaluate one configuration that is not among the trials"
NO_STEP = "(no step yet)"
CUT = "… (the rest did not fit)"
LEFT_OUT = "({} earlier steps are left out; read_history and read_notes hold what they found)"
UNREADABLE = "that could not be read: answer with one JSON object of next_thought, next_tool_name and next_tool_args"


@dataclass(slots=True)
class Trajectory:
    """Steps as the model sees them again: thought, call and observation, one line each. ``measure`` counts tokens."""

    measure: Callable[[str], int]
    lines: list[str] = field(default_factory=list)
    first: int = 0  # the oldest line still shown
    _sizes: list[int] = field(default_factory=list)

    def add(self, thought: str, tool: str, arguments: Any, observation: Answer) -> None:
        """One more step."""
        step = {"thought": thought, "tool": tool, "args": arguments, "observation": observation}
        self.lines.append(compact({name: value for name, value in step.items() if value not in ("", {}, None)}))
        self._sizes.append(self.measure(self.lines[-1] + "\n"))

    def text(self, room: int) -> str:
        """The newest steps that fit in ``room`` tokens.

        What does not fit is cut down to half the room at once, so that the steps that follow only append: a prompt that
        loses its oldest line at every step has no beginning in common with the one before for a provider to reuse.
        """
        if len(self.lines) - self.first > STEPS_SHOWN:
            self.first = len(self.lines) - STEPS_SHOWN // 2
        if self._size() > room:
            while self.first < len(self.lines) - 1 and self._size() > room // 2:
                self.first += 1
            if self._size() > room:
                self._shorten_last(room - self._size() + self._sizes[-1])
        return self._joined() or NO_STEP

    def _shorten_last(self, room: int) -> None:
        """A last step that is too long alone keeps its beginning, as a text."""
        kept = self.lines[-1]
        while kept and self._sizes[-1] > room:
            kept = kept[: len(kept) // 2]
            self.lines[-1] = compact(kept + CUT)
            self._sizes[-1] = self.measure(self.lines[-1] + "\n")
        if self._sizes[-1] > room:
            self.first = len(self.lines)

    def _size(self) -> int:
        head = [self.measure(LEFT_OUT.format(self.first) + "\n")] if self.first else []
        return sum([*head, *self._sizes[self.first :]])

    def _joined(self) -> str:
        head = [LEFT_OUT.format(self.first)] if self.first else []
        return "\n".join([*head, *self.lines[self.first :]])

    def count_again(self) -> None:
        """Count every step anew, where the counter has learned."""
        self._sizes = [self.measure(line + "\n") for line in self.lines]

    def halve(self) -> None:
        """Show half as many steps from now on."""
        self.first += (len(self.lines) - self.first + 1) // 2


@dataclass(slots=True)
class Outcome:
    """How the loop ended, and what it did."""

    stop: Stop
    steps: int
    trajectory: Trajectory


Step = Callable[[str, str, Mapping[str, Any], Answer], None]  # thought, tool, arguments, observation


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """A step's prompt without the trajectory: inputs, what the call leaves out of the program, and its tokens."""

    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    tokens: int  # with NO_STEP for a trajectory


def investigate(
    ask: Ask,
    react: Any,
    toolbox: Toolbox,
    prompt: Callable[[int], StepPrompt],
    free_tokens: int,
    measure: Callable[[str], int],
    on_step: Step,
) -> Outcome:
    """Run the loop. ``prompt`` fits all but the trajectory into a room. Raises the LlmFailure that ended it."""
    trajectory, steps, faults, idle, overflows = Trajectory(measure), 0, 0, 0, 0
    limit = free_tokens
    fixed = prompt(limit)
    while toolbox.stop is None:
        if idle >= MAX_IDLE:
            return Outcome(Stop("no_proposals", f"{MAX_IDLE} steps in a row proposed nothing new"), steps, trajectory)
        room = limit - fixed.tokens
        try:
            shown = trajectory.text(room)
            answer = ask("investigate", react, **fixed.options, **fixed.inputs, trajectory=shown)
        except LlmFailure as failure:
            if failure.code == failures.CONTEXT and overflows < MAX_OVERFLOWS:
                overflows += 1
                if not isinstance(failure, TooLong) or overflows > 1:  # our own count may only have become stricter
                    limit = limit * 2 // 3
                    trajectory.halve()
                trajectory.count_again()
                fixed = prompt(limit)
                continue
            if failure.code == failures.UNREADABLE and faults + 1 < MAX_FAULTS:
                faults, idle, steps = faults + 1, idle + 1, steps + 1
                trajectory.add("", "", {}, {"error": UNREADABLE})
                on_step("", "", {}, {"error": "unreadable answer"})
                continue
            raise
        steps, faults, overflows = steps + 1, 0, 0
        tool, arguments = answer.next_tool_name.root.strip(), answer.next_tool_args
        thought = toolbox.redactor.text(answer.next_thought.root, 300)
        if tool == FINISH and not toolbox.spent and not toolbox.repeats:
            idle += FINISH_IS_IDLE
            trajectory.add(thought, tool, {}, {"error": TOO_EARLY})
            on_step(thought, tool, {}, {"error": TOO_EARLY})
            continue
        if tool == FINISH:
            on_step(thought, tool, {}, {"status": "finished"})
            return Outcome(Stop("finished", "the language model had no further proposal"), steps, trajectory)
        before = toolbox.spent
        observation = toolbox.call(tool, arguments)
        if toolbox.failure is not None:
            raise toolbox.failure
        idle = 0 if toolbox.spent > before else idle + 1
        said = _said(tool, arguments)
        trajectory.add(thought, toolbox.redactor.text(tool, 60), toolbox.redactor.value(said, 200), observation)
        on_step(thought, tool, said, observation)
    return Outcome(toolbox.stop, steps, trajectory)


def _said(tool: str, arguments: ToolArguments) -> dict[str, Any]:
    """The arguments a tool used."""
    if tool == "evaluate":
        return {
            "changes": arguments.partial(),
            **({"hypothesis": arguments.hypothesis} if arguments.hypothesis else {}),
        }
    return {"text": arguments.text} if arguments.text and tool in TOOL_NAMES else {}
