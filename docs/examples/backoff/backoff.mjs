const base = 500, longest = 60_000, attempts = 6; // ms, ms, times

// How many ms to wait before attempt n+1 (n counts from 0); null: waiting does not help.
export function wait(res, n, random = Math.random) {
  const told = res?.headers.get('retry-after');
  if (told != null && /^\d+$/.test(told)) {
    return told * 1000 + random() * Math.max(told * 100, 1000); // never earlier than told
  }
  if (res?.status === 429) return null; // no Retry-After on a 429: this request never fits its limit
  return random() * Math.min(longest, base * 2 ** n); // nobody said how long: full jitter
}

// fetch() that is repeated until it is answered by something else than 429 or 503.
export async function politeFetch(url, options = {}) {
  for (let n = 0; ; n++) {
    let res, failure;
    try { res = await fetch(url, options); } catch (error) { failure = error; }
    if (res && res.status !== 429 && res.status !== 503) return res;
    const ms = options.signal?.aborted ? null : wait(res, n);
    if (ms === null || n + 1 === attempts) {
      if (failure) throw failure;
      return res;
    }
    await res?.body?.cancel();
    await new Promise((done) => setTimeout(done, ms));
  }
}
