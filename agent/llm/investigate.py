"""The investigation loop: DSPy ReAct steps over the toolbox until it stops, finishes, or has nothing readable to say.

Errors are observations. A step that cannot be read, or names no tool, costs a step and tells the model how to go on;
too many in a row, or too many steps without a proposal, end the loop. The trajectory in the prompt is cut from its old
end, by size before each call and by half when the server says that the context window is exceeded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.llm import failures
from agent.llm.failures import LlmFailure
from agent.llm.inputs import compact
from agent.llm.planner import Ask
from agent.llm.program import overhead_bytes
from agent.llm.proposals import FINISH, TOOL_NAMES, ToolArguments
from agent.llm.tools import Answer, Stop, Toolbox

MAX_FAULTS = 4  # unreadable steps in a row
MAX_IDLE = 10  # steps in a row that propose nothing new
MAX_OVERFLOWS = 4  # halvings of the trajectory in a row
STEPS_SHOWN = 30  # of the trajectory; older ones are in the trials and the notes
SMALLEST_ROOM = 600  # bytes of trajectory always shown
FINISH_IS_IDLE = 4  # idle steps that giving up before any proposal counts for
TOO_EARLY = "nothing was proposed yet: evaluate one configuration that is not among the trials"
NO_STEP = "(no step yet)"
LEFT_OUT = "({} earlier steps are left out; read_history and read_notes hold what they found)"
UNREADABLE = "that could not be read: answer with one JSON object of next_thought, next_tool_name and next_tool_args"


@dataclass(slots=True)
class Trajectory:
    """Steps as the model sees them again: thought, call and observation, one line each."""

    lines: list[str] = field(default_factory=list)
    first: int = 0  # the oldest line still shown

    def add(self, thought: str, tool: str, arguments: Any, observation: Answer) -> None:
        """One more step."""
        step = {"thought": thought, "tool": tool, "args": arguments, "observation": observation}
        self.lines.append(compact({name: value for name, value in step.items() if value not in ("", {}, None)}))

    def text(self, most_bytes: int) -> str:
        """The newest steps that fit.

        What does not fit is cut down to half the room at once, so that the steps that follow only append: a prompt that
        loses its oldest line at every step has no beginning in common with the one before for a provider to reuse.
        """
        room = max(most_bytes, SMALLEST_ROOM)
        if len(self.lines) - self.first > STEPS_SHOWN:
            self.first = len(self.lines) - STEPS_SHOWN // 2
        if self._size() > room:
            while self.first < len(self.lines) - 1 and self._size() > room // 2:
                self.first += 1
            self.first += self._size() > room  # a last step that is too long alone
        return self._joined() or NO_STEP

    def _size(self) -> int:
        return len(self._joined().encode())

    def _joined(self) -> str:
        head = [LEFT_OUT.format(self.first)] if self.first else []
        return "\n".join([*head, *self.lines[self.first :]])

    def halve(self) -> None:
        """Show half as many steps from now on."""
        self.first += (len(self.lines) - self.first) // 2


@dataclass(slots=True)
class Outcome:
    """How the loop ended, and what it did."""

    stop: Stop
    steps: int
    trajectory: Trajectory


Step = Callable[[str, str, Mapping[str, Any], Answer], None]  # thought, tool, arguments, observation


def investigate(
    ask: Ask,
    react: Any,
    toolbox: Toolbox,
    inputs: Callable[[int], Mapping[str, str]],
    prompt_bytes: Callable[[], int],
    on_step: Step,
) -> Outcome:
    """Run the loop. ``inputs`` gives the prompt's other inputs within a size. Raises the LlmFailure that ended it."""
    trajectory, steps, faults, idle, overflows = Trajectory(), 0, 0, 0, 0
    overhead = overhead_bytes(react)
    fixed = inputs((prompt_bytes() - overhead) * 2 // 3)
    while toolbox.stop is None:
        if idle >= MAX_IDLE:
            return Outcome(Stop("no_proposals", f"{MAX_IDLE} steps in a row proposed nothing new"), steps, trajectory)
        room = prompt_bytes() - _size(fixed) - overhead
        try:
            answer = ask("investigate", react, **fixed, trajectory=trajectory.text(room))
        except LlmFailure as failure:
            if failure.code == failures.CONTEXT and overflows < MAX_OVERFLOWS:
                overflows += 1
                trajectory.halve()
                fixed = inputs(_size(fixed) * 2 // 3)
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


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for text in texts.values())


def _said(tool: str, arguments: ToolArguments) -> dict[str, Any]:
    """The arguments a tool used."""
    if tool == "evaluate":
        return {
            "changes": arguments.partial(),
            **({"hypothesis": arguments.hypothesis} if arguments.hypothesis else {}),
        }
    return {"text": arguments.text} if arguments.text and tool in TOOL_NAMES else {}
