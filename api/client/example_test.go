package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/pegel-dev/pegel/api/client"
)

// One decision, and what to do with each outcome.
func Example() {
	pegel, err := client.New("http://pegel:8080", os.Getenv("PEGEL_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	defer pegel.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	decision, err := pegel.Check(ctx, client.Check{Tenant: "school-17", User: "u42", Cost: 5})
	var refused *client.RateLimitError
	switch {
	case errors.As(err, &refused):
		fmt.Println("refused; retry after", refused.RetryAfter)
	case err != nil:
		fmt.Println("no decision; this program lets it pass:", err)
	default:
		time.Sleep(decision.Delay) // 0 unless the tenant is being slowed
		fmt.Println(decision.Remaining, "left")
	}
}

func ExampleClient_CheckBatch() {
	pegel, err := client.New("http://pegel:8080", os.Getenv("PEGEL_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	results, err := pegel.CheckBatch(context.Background(), []client.Check{
		{Tenant: "school-17", Path: "/v1/mails", Cost: 20},
		{Tenant: "school-18", Path: "/v1/mails", Cost: 3},
	})
	if err != nil {
		log.Fatal(err)
	}
	for i, r := range results {
		if wait, ok := client.RetryAfter(r.Err); ok {
			fmt.Println("batch", i, "has to wait", wait)
		}
	}
}

// The middleware around a handler of net/http. chi takes it as it is: router.Use(limit).
func ExampleMiddleware() {
	pegel, err := client.New("http://pegel:8080", os.Getenv("PEGEL_TOKEN"))
	if err != nil {
		log.Fatal(err)
	}
	limit := client.Middleware(pegel, func(r *http.Request) (client.Check, bool) {
		session, ok := sessionOf(r) // what your own authentication found
		return client.Check{Tenant: session.Tenant, User: session.User, Method: r.Method, Path: r.URL.Path}, ok
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/messages", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe(":3000", limit(mux)))
}

// Calls to an API that answers 429 are repeated when it says so.
func ExampleTransport() {
	api := &http.Client{
		Transport: &client.Transport{MaxAttempts: 5, MaxWait: time.Minute},
		Timeout:   2 * time.Minute, // the waits included
	}
	res, err := api.Get("https://api.example.org/v1/messages")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	fmt.Println(res.Status)
}

type session struct{ Tenant, User string }

func sessionOf(*http.Request) (session, bool) { return session{Tenant: "school-17", User: "u42"}, true }
