"""Pegel for FastAPI and Starlette. Needs httpx."""
import asyncio
import logging

import httpx
from starlette.responses import Response

PASS_ON = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-slowdown",
           "ratelimit-policy", "ratelimit", "retry-after", "x-pegel-decision", "x-pegel-source")
REFUSALS = ("rate_limit_exceeded", "cost_exceeds_limit", "tenant_suspended", "network_denied", "not_found",
            "validation", "payload_too_large", "store_unavailable")
log = logging.getLogger("pegel")


class Pegel:
    """identify(request) says who pays: the fields of POST /v1/check, from what you authenticated; None: not limited."""

    def __init__(self, url, token, identify, timeout=0.25):
        self.identify, self.timeout = identify, timeout  # seconds, reading the answer included
        self.client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"})

    async def __call__(self, request, call_next):
        who = self.identify(request)
        if who is None:
            return await call_next(request)
        path = request.scope.get("raw_path") or request.url.path.encode()
        facts = {"method": request.method, "path": path.decode("latin-1"), **who}
        try:
            answer = await asyncio.wait_for(self.client.post("/v1/check", json=facts), self.timeout)
            verdict = answer.json()
        except (httpx.HTTPError, asyncio.TimeoutError, ValueError) as error:
            log.warning("Pegel is away, the request passes: %r", error)
            return await call_next(request)
        if not isinstance(verdict, dict):
            verdict = {}
        if answer.status_code == 200 and "decision" in verdict:
            await asyncio.sleep(verdict["delay_ms"] / 1000)
            response = await call_next(request)
        elif verdict.get("error") in REFUSALS and "x-pegel-starting" not in answer.headers:
            response = Response(answer.content, answer.status_code, {"Cache-Control": "no-store"}, "application/problem+json")
        else:  # a wrong token, say
            log.warning("Pegel answered %d %s, the request passes", answer.status_code, verdict.get("error"))
            return await call_next(request)
        response.headers.update({name: answer.headers[name] for name in PASS_ON if name in answer.headers})
        return response
