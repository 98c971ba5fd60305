"""Rollouts on disk: record, resume, open, verify, list, replay, export and import dumps.

From ``tdx rollout`` to the bytes:

1. ``recording/request.py`` turns a :class:`DumpRequest` into an env, a policy and a manifest.
   ``policies/policy.py`` loads the policy, with ``policies/loaders.py`` for those in files.
2. ``recording/rollout.py``: :func:`roll_out` creates the dump, iterates over the chunks of
   ``env.iter_rollout``, and passes each one to a thread that writes it.
   ``recording/checkpoint.py`` saves the state of the env and its chain after each chunk.
3. ``dump/writing.py``: ``create_dump`` creates and locks the folder, whose files
   ``dump/folder.py`` names. ``DumpWriter.append`` writes a chunk: its numbers with
   ``dump/track.py``, its episodes with ``dump/episodes.py``, the state file, and a line of the
   index with ``dump/index.py``. ``dump/encoding.py`` adds the checksums.
4. ``dump/manifest.py`` reads all of this back, and checks it.

:func:`resume`, in ``recording/rollout.py`` too, locks the dump, restores the state with
``recording/checkpoint.py`` or runs the stored steps again, and continues with step 2.

A sharded dump is a plan and one dump per shard (``dump/shard_plan.py``). :func:`roll_out_shards`,
in ``recording/sharded_rollout.py``, passes the missing shards to an engine
(``tdx/engines.py``), whose processes record each with ``recording/shards.py``: a manifest that
follows from the plan, step 2 in a temporary folder, and one rename. ``dump/sharded.py`` reads
all shards as one rollout.

``dump/reading.py`` opens and summarizes dumps, ``dump/verification.py`` compares them with their
checksums and specs, and ``dump/repair.py`` cuts a damaged one back to its last intact chunk.
``recording/existing_steps.py`` writes dumps from steps that exist already.
``formats/conversion.py`` exports and imports dumps, with one module per format.

Importing this package loads nothing; ``__init__.pyi`` lists its names.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
