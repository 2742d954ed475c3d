"""`GET /plan`: one request from its query string to the bytes of its answer, and its metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from affinityd.config import OBSERVE
from affinityd.daemon.api import JSON, TEXT, caller_of_request, refusals, state_of
from affinityd.daemon.api.peers import peer_of_request
from affinityd.errors import InvalidRequestError
from affinityd.json_codec import dumps
from affinityd.request import resolve
from affinityd.request.document import PlanDocument, document
from affinityd.request.environment import ENV
from affinityd.request.formats import render
from affinityd.request.parameters import MAX_LENGTH, PARAMETERS, VARIABLE, Request, parse_query
from affinityd.request.ranks import asked_ranks
from affinityd.request.resolve import Caller, Reply
from affinityd.request.task import names_unknown_mig
from affinityd.text import quote
from affinityd.topology.model import Node, Topology
from affinityd.topology.nearness import UNKNOWN, placement, vicinity

MAX_FIELDS = 64  #: how many fields a query may have
MOST_REPLIES = 64  #: how many replies are kept, for a job's ranks and for repeated requests
#: Most CPUs in all lists and masks of a request whose reply is kept; a CPU takes 100 bytes.
MOST_CPUS = 2048
JOBS_FORMAT = "shell"  #: the format of exec, bind, TaskProlog and a pod's run

_reply = lru_cache(MOST_REPLIES)(resolve.plan_reply)

NOT_READ = refusals({503: "The machine has not been read yet."})
NO_PLAN = {
    **refusals(
        {
            404: "No such GPU, or none visible; the message says which exist.",
            409: "Cannot be satisfied; the message says what could be.",
            422: "A parameter is unknown, repeated, empty or malformed.",
        }
    ),
    **NOT_READ,
}
#: FastAPI does not read these parameters: the command line, which lacks FastAPI, has them, too.
DESCRIBED = [
    {
        "name": name,
        "in": "query",
        "description": parameter.help,
        "schema": parameter.schema,
        "allowEmptyValue": parameter.may_be_empty,
    }
    for name, parameter in {**PARAMETERS, ENV: VARIABLE}.items()
]

router = APIRouter()


def count_plan(request: HttpRequest, mode: str, result: str, locality: str) -> None:
    """Count a plan or a refusal, by client: `job` for exec, bind, TaskProlog and a pod's run."""
    client = "other"
    if f"format={JOBS_FORMAT}".encode() in request.scope["query_string"]:
        client = "job"
    state_of(request).metrics.plans.labels(mode, result, locality, client).inc()


async def read_query(request: HttpRequest) -> Request:
    """Read the query of a request, and read the machine again if it has changed."""
    query = request.scope["query_string"]
    watcher = state_of(request).watcher
    await watcher.first_reading()
    asked = parse_query(pairs_of(query))
    await watcher.refresh()
    names_mig = b"MIG-" in query  # maybe the instance was made after the last reading
    if names_mig and names_unknown_mig(watcher.node.topology, asked.task):
        peer = peer_of_request(request.scope)
        user = None if peer is None else peer.credentials.uid
        await watcher.seek_mig(user)
    return asked


@router.get(
    "/plan",
    summary="The CPUs of each rank",
    response_model=PlanDocument,
    responses={200: {"content": {TEXT: {"schema": {"type": "string"}}}}, **NO_PLAN},
    openapi_extra={"parameters": DESCRIBED},
)
async def plan(request: HttpRequest, asked: Annotated[Request, Depends(read_query)]) -> Response:
    """Answer a request. Raises AffinityError, whose kind is the reason of the refusal."""
    state = state_of(request)
    node = state.watcher.node
    caller = caller_of_request(request)
    reply = find_reply(node, asked, caller)
    form = asked.format or "json"
    if not asked.format and wants_text(request.headers.get("accept")):
        form = "cpulist"
    count_plan(request, reply.request.options.mode, "ok", reply.locality)
    if observed := observed_placement(node.topology, reply, caller, form):
        state.metrics.observed_plans.labels(observed, reply.locality).inc()
    if form == "json":
        return Response(f"{dumps(document(reply), ensure_ascii=False)}\n", media_type=JSON)
    return Response(render(reply, form), media_type=TEXT)


def find_reply(node: Node, asked: Request, caller: Caller | None = None) -> Reply:
    """Return the reply to a request, from the cache or computed; `caller` None: unknown.

    Raises AffinityError, whose kind is the reason of the refusal.
    """
    task = asked.task
    is_own = task.slice is not None
    has_number = task.cpus is not None and not task.cpus.is_allotment
    is_of_job = task.rank is not None and task.job is None and not (has_number or is_own)
    if asked.choose or _cpus_in(asked) > MOST_CPUS:  # choices of GPUs have their own cache
        reply = resolve.plan_reply(node, asked, caller)
    elif is_of_job and not (task.is_launched and task.ranks is None):
        # The replies to the other ranks of a job differ only in the rank.
        reply = _reply(node, asked._replace(task=replace(task, rank=None)), caller)
        reply = reply._replace(asked_ranks=asked_ranks(task.rank, len(reply.entries)))
    else:
        reply = _reply(node, asked, caller)
    return resolve.check_gpus_of(node, reply)


def _cpus_in(asked: Request) -> int:
    sets = [asked.observe, asked.task.cpuset, asked.task.slice]
    if asked.task.slurm:
        slurm = asked.task.slurm
        sets += [slurm.mask, slurm.pinned, slurm.allowed, *slurm.masks]
    return sum(len(cpus) for cpus in sets if cpus)


def pairs_of(query: bytes) -> list[tuple[str, str]]:
    """Read a query string. Raises InvalidRequestError if it is not percent-encoded UTF-8."""
    if not query:
        return []
    if len(query) > MAX_LENGTH:
        raise InvalidRequestError(
            f"a query of {len(query)} characters is too long; the most is {MAX_LENGTH}"
        )
    try:
        text = query.decode("ascii")
        for part in text.split("&"):
            if not part:
                break  # parse_qsl will refuse the query
            if "=" not in part:
                raise InvalidRequestError(f"{quote(part)} has no value; write NAME=VALUE")
        return parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise InvalidRequestError(
            "the query string cannot be read; write it like gpus=0,1&mode=node, at most "
            f"{MAX_FIELDS} parameters, percent-encoded as UTF-8"
        ) from None


def wants_text(accept: str | None) -> bool:
    """Return whether an Accept header prefers plain text."""
    return accept is not None and accept.split(",")[0].split(";")[0].strip().lower() == "text/plain"


def observed_placement(
    topology: Topology, reply: Reply, caller: Caller | None, form: str
) -> str | None:
    """Return the placement of a client that observes; None: it does not observe.

    A client that would apply a plan states its CPUs, or requests the format `shell`.
    """
    mask = reply.request.observe
    is_told = mask is not None or (form == JOBS_FORMAT and reply.request.whose == "caller")
    if reply.switch != OBSERVE or not is_told:
        return None
    mask = mask or (caller.mask if caller else reply.request.task.cpuset)
    if mask is None:
        return UNKNOWN
    return placement(topology, vicinity(topology, [rank.gpu for rank in reply.ranks]), mask)
