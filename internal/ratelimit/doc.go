// Package ratelimit is what Pegel exists for: the maths of the five algorithms as pure functions, the contract every
// counter store keeps, and the decorators that keep deciding when a store does not.
//
// It imports no driver and reads no clock: `now` is an argument, or a function handed in. README.md beside this file
// defines the terms and works an example.
package ratelimit
