"""See what runs do: live, in traces, and in reports of them.

`record` writes a trace while a program runs: a file of JSON lines, one for each thing that
happens. `read_trace` reads it back. All the rest starts from that file, or from the same notices as
`record`: events handed to the ``notice`` method of an observer (see `harness.observing`).

**The format.** Each line is a JSON object in ASCII with a ``type``, a ``time`` in seconds since the
recording began (to the nanosecond), and a ``run_id``. Lines are in the order in which things
happened. A last line without a line break was cut off by a crash, and doesn't count. Fields that
have nothing to say are left out; readers must ignore fields and types that they don't know.

============= ====================================================================================
type          its other fields
============= ====================================================================================
run_started   ``parent`` (a run id; none for a root), ``path``, ``depth``, ``by`` (the run whose end
              let it begin; none: its parent's own code), ``inline`` (true: it is in its parent's
              own task), ``index`` (the item it is an attempt at), ``tags``, and for a root, and
              the first run of the recording, ``unix`` (the time of day as Unix seconds) and
              ``process`` (the process id).
run_ended     ``status`` (``ok failed timed_out cancelled``), and after an error ``error`` (its
              type), ``message`` and ``traceback`` (of the user's frames, each as
              ``file:line function``); for a group, of the first error in it, and ``errors``: how
              many there are.
attempt       An attempt at an item, or at a stage's call, has ended: ``index``, ``key`` (the
              stage's name at a stage), ``number`` (from 1), ``status``, ``seconds``, ``error``,
              ``message``, ``value`` (only if values were asked for). The ``run_id`` is that of the
              attempt.
wait          A wait begins: ``wait`` (its number), ``reason`` (``limiter queue retry model tool
              cleanup``), ``on`` (what it waits for, by name), ``held_by`` (run ids, if known).
wake          It is over: ``wait``, ``reason``, ``by`` (the run that ended it; none: the clock, or
              an answer from outside). From a limiter also ``limiter`` (its name), ``granted`` (an
              object: the name of each limit with ``[amount, limit, period in seconds]``),
              ``places``, ``in_flight``, ``input_tokens`` (if the limiter was told only these, and
              guessed the output), and ``headroom`` and ``burst_seconds`` if they aren't 1.
release       What a limiter granted is given back: ``wait`` (the one that the grant ended). If it
              was settled, also ``settled`` (when), and what it came to: ``requests`` (0 after a
              refund), ``tokens``, ``input_tokens``, ``output_tokens``.
model_call    A model was asked once: ``model``, ``provider``, ``seconds``, ``status`` (``ok failed
              cancelled``), ``finish``, ``input_tokens``, ``output_tokens``,
              ``cached_input_tokens``, ``cost_usd``, ``error``, ``message``; ``request`` and
              ``response`` only if messages were asked for.
tool_call     A tool was called: ``tool``, ``call_id``, ``seconds``, ``status``, ``error``,
              ``message``; ``arguments`` only if messages were asked for.
retry         Another attempt follows: ``index``, ``key``, ``number`` (of the failed attempt),
              ``after`` (its run), ``delay`` (in seconds), ``error``, ``message``. The ``run_id`` is
              that of the fan-out, or of the item at a stage.
hedge         An attempt begins beside a late one: ``index``, ``key``, ``attempt`` (its run),
              ``beside`` (the late one's).
============= ====================================================================================

Keys, passwords and tokens are masked in everything that comes from the program; long texts are cut.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.flow import speedup
    from harness.observe._analysis import Analysis, OpenWait, RunAnalysis, Step, analyse
    from harness.observe._chrome import export_chrome
    from harness.observe._constraint import LimitUse
    from harness.observe._dashboard import open_dashboard
    from harness.observe._distribution import Distribution
    from harness.observe._metrics import Metrics, Spent
    from harness.observe._otlp import exporting, show_metrics
    from harness.observe._plan import Plan, plan
    from harness.observe._prometheus import PrometheusCollector, serving_metrics
    from harness.observe._read import read_trace
    from harness.observe._record import TraceRecording, record
    from harness.observe._report import write_report
    from harness.observe._socket import open_socket
    from harness.observe._spans import Spans, continuing
    from harness.observe._stalls import Stall, watching_stalls
    from harness.observe._stragglers import Stragglers
else:
    __getattr__, __dir__ = lazy(
        extras={
            "hypercorn": "dashboard",
            "starlette": "dashboard",
            "prometheus_client": "prometheus",
            # Of these, other packages install some.
            "opentelemetry": "otel",
            "opentelemetry.sdk": "otel",
            "opentelemetry.exporter": "otel",
            "opentelemetry.exporter.otlp.proto.http": "otel",
        }
    )

__all__ = [
    "Analysis",
    "Distribution",
    "LimitUse",
    "Metrics",
    "OpenWait",
    "Plan",
    "PrometheusCollector",
    "RunAnalysis",
    "Spans",
    "Spent",
    "Stall",
    "Step",
    "Stragglers",
    "TraceRecording",
    "analyse",
    "continuing",
    "export_chrome",
    "exporting",
    "open_dashboard",
    "open_socket",
    "plan",
    "read_trace",
    "record",
    "serving_metrics",
    "show_metrics",
    "speedup",
    "watching_stalls",
    "write_report",
]
