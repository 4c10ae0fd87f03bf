<?php
// Pegel for PHP 8. Call it before anything else; it returns when the request may go on. No extension needed.
// $who says who pays: the fields of POST /v1/check, from what you authenticated. $timeout is in seconds.
function pegel(string $url, string $token, array $who, float $timeout = 0.25): void
{
    $passOn = ['x-ratelimit-limit', 'x-ratelimit-remaining', 'x-ratelimit-reset', 'x-ratelimit-slowdown',
        'ratelimit-policy', 'ratelimit', 'retry-after', 'x-pegel-decision', 'x-pegel-source'];
    $refusals = ['rate_limit_exceeded', 'cost_exceeds_limit', 'tenant_suspended', 'network_denied', 'not_found',
        'validation', 'payload_too_large', 'store_unavailable'];
    $facts = $who + ['method' => $_SERVER['REQUEST_METHOD'], 'path' => explode('?', $_SERVER['REQUEST_URI'])[0]];
    $body = @file_get_contents("$url/v1/check", false, stream_context_create(['http' => [
        'method' => 'POST',
        'header' => ["Authorization: Bearer $token", 'Content-Type: application/json'],
        'content' => json_encode($facts, JSON_INVALID_UTF8_SUBSTITUTE),
        'timeout' => $timeout,
        'ignore_errors' => true, // a 429 has a body too
        'follow_location' => 0,
    ]]));
    $verdict = is_string($body) ? json_decode($body, true) : null;
    $status = 0;
    $headers = [];
    foreach ($http_response_header ?? [] as $line) {
        if (preg_match('#^HTTP/\S+ (\d+)#', $line, $found)) {
            $status = (int) $found[1];
        } elseif (str_contains($line, ':')) {
            [$name, $value] = explode(':', $line, 2);
            $headers[strtolower($name)] = trim($value);
        }
    }
    $allowed = $status === 200 && isset($verdict['decision']);
    $refused = in_array($verdict['error'] ?? '', $refusals, true) && !isset($headers['x-pegel-starting']);
    if (!$allowed && !$refused) {
        error_log("Pegel gave no decision (status $status), the request passes"); // away, or a wrong token
        return;
    }
    foreach (array_intersect_key($headers, array_flip($passOn)) as $name => $value) {
        header("$name: $value");
    }
    if ($allowed) {
        usleep($verdict['delay_ms'] * 1000); // 0 unless the tenant is slowed
        return;
    }
    http_response_code($status);
    header('Content-Type: application/problem+json');
    header('Cache-Control: no-store');
    exit($body);
}
