package tenants

import "maps"

// layered is an immutable map that is cheap to change a little: a large base that generations of snapshots share, and
// a small layer of what has changed since, nil for what is gone. A look-up costs one or two map accesses; a new generation
// copies the layer, and now and then merges it into a new base.
type layered[K comparable, T any] struct {
	base, changed map[K]*T
	size          int
}

// The layer is merged when it outgrows one sixteenth of the base, within these bounds: copying it on every change stays
// below a millisecond, and copying the base is paid once in hundreds of changes.
const (
	minLayer = 256
	maxLayer = 8192
)

func (l *layered[K, T]) get(k K) (*T, bool) {
	if len(l.changed) > 0 {
		if v, ok := l.changed[k]; ok {
			return v, v != nil
		}
	}
	v, ok := l.base[k]
	return v, ok
}

func (l *layered[K, T]) len() int { return l.size }

// all calls yield for every entry, in no order, until it returns false.
func (l *layered[K, T]) all(yield func(K, *T) bool) {
	for k, v := range l.changed {
		if v != nil && !yield(k, v) {
			return
		}
	}
	for k, v := range l.base {
		if _, over := l.changed[k]; !over && !yield(k, v) {
			return
		}
	}
}

// editor builds the next generation of a layered map; the one it started from stays as it is.
type editor[K comparable, T any] struct {
	layered[K, T]

	owned bool // changed is a copy of our own
}

func (l *layered[K, T]) edit() *editor[K, T] { return &editor[K, T]{layered: *l} }

// fresh starts over with room for n entries.
func fresh[K comparable, T any](n int) *editor[K, T] {
	return &editor[K, T]{layered: layered[K, T]{changed: make(map[K]*T, n)}, owned: true}
}

func (e *editor[K, T]) set(k K, v *T) {
	if _, had := e.get(k); !had {
		e.size++
	}
	e.own()[k] = v
}

func (e *editor[K, T]) remove(k K) {
	if _, had := e.get(k); had {
		e.size--
		e.own()[k] = nil
	}
}

// flat is the same content without a base beneath it. One that has none is returned as it is.
func (e *editor[K, T]) flat() *editor[K, T] {
	if len(e.base) == 0 && e.owned {
		return e
	}
	next := fresh[K, T](e.size)
	next.size = e.size
	e.all(func(k K, v *T) bool {
		next.changed[k] = v
		return true
	})
	return next
}

func (e *editor[K, T]) own() map[K]*T {
	if !e.owned {
		next := make(map[K]*T, len(e.changed)+8)
		maps.Copy(next, e.changed)
		e.changed, e.owned = next, true
	}
	return e.changed
}

// done is the finished generation; the editor is not to be used afterwards.
func (e *editor[K, T]) done() layered[K, T] {
	if len(e.changed) <= min(max(minLayer, len(e.base)/16), maxLayer) {
		return e.layered
	}
	base := e.changed // nothing beneath it: it becomes the base as it is
	if len(e.base) > 0 {
		base = maps.Clone(e.base)
		maps.Copy(base, e.changed)
	}
	maps.DeleteFunc(base, func(_ K, v *T) bool { return v == nil })
	return layered[K, T]{base: base, size: e.size}
}
