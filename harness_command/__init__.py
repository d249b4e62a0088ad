"""The ``harness`` command, which Ctrl-C ends quietly while it is still loading.

A package of its own, since importing `harness` takes a fraction of a second, in which users notice
a typing mistake: this is loaded before.
"""

try:
    from harness.cli import main as main
except KeyboardInterrupt:
    raise SystemExit(130) from None
