// Pegel for Express, and for whatever else takes (req, res, next). Node 18 and newer; no packages.
const passOn = ['x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset', 'x-ratelimit-slowdown',
  'ratelimit-policy', 'ratelimit', 'retry-after', 'x-pegel-decision', 'x-pegel-source'];
const refusals = ['rate_limit_exceeded', 'cost_exceeds_limit', 'tenant_suspended', 'network_denied', 'not_found',
  'validation', 'payload_too_large', 'store_unavailable'];

// identify(req) says who pays: {tenant, user, …} of POST /v1/check, from what you authenticated; nothing: not limited.
export function pegel({ url, token, identify, timeout = 250, onError = console.warn }) {
  return async (req, res, next) => {
    let who, answer, verdict;
    try {
      who = identify(req);
    } catch (err) {
      return next(err); // an async function that throws would end the process
    }
    if (!who) return next();
    try {
      answer = await fetch(`${url}/v1/check`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ method: req.method, path: (req.originalUrl ?? req.url).split('?')[0], ...who }),
        signal: AbortSignal.timeout(timeout), // ms, reading the answer included
        redirect: 'error',
      });
      verdict = await answer.json();
    } catch (err) {
      onError(err); // Pegel is away: the request passes
      return next();
    }
    for (const name of passOn) {
      if (answer.headers.has(name)) res.setHeader(name, answer.headers.get(name));
    }
    if (answer.ok && verdict?.decision) {
      if (verdict.delay_ms > 0 && !(await stays(res, verdict.delay_ms))) return; // the client has left
      return next();
    }
    if (refusals.includes(verdict?.error) && !answer.headers.has('x-pegel-starting')) {
      res.writeHead(answer.status, { 'content-type': 'application/problem+json', 'cache-control': 'no-store' });
      return res.end(JSON.stringify(verdict));
    }
    onError(new Error(`Pegel answered ${answer.status} ${verdict?.error ?? ''}`)); // a wrong token, say
    next();
  };
}

// stays waits for so many ms, and says whether the client is still there.
function stays(res, ms) {
  return new Promise((done) => {
    if (res.destroyed) return done(false); // left while Pegel was asked
    const timer = setTimeout(() => done(true), ms);
    res.once('close', () => { clearTimeout(timer); done(false); });
  });
}
