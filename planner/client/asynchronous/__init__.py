"""The client for programs of an event loop: the synchronous one behind awaited methods, called in threads.

- `client`: AsyncPlannerClient; `plans`, `pipeline`, `trainer`: what its methods give.
- `methods`: from a synchronous method to an awaited one, with its signature and docstring.
- `threads`: where the calls run, and how a task that is cancelled ends them.

There is one implementation, the synchronous one, because gRPC's own asyncio streams report a refusal that comes while
something is being sent as INTERNAL, and because the paths to workers of the same host are sockets that block.
"""

from planner.client.asynchronous.client import AsyncPlannerClient
from planner.client.asynchronous.pipeline import AsyncPipeline
from planner.client.asynchronous.plans import AsyncPlanOperation
from planner.client.asynchronous.trainer import AsyncTrainer

__all__ = ["AsyncPipeline", "AsyncPlanOperation", "AsyncPlannerClient", "AsyncTrainer"]
