package world

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// clone copies what a shrinking changes.
func (p *plan) clone() *plan {
	c := *p
	c.faults = slices.Clone(p.faults)
	c.users = nil
	for _, u := range p.users {
		v := *u
		v.items = slices.Clone(u.items)
		c.users = append(c.users, &v)
	}
	c.pms = nil
	for _, u := range p.pms {
		v := *u
		v.ops = slices.Clone(u.ops)
		c.pms = append(c.pms, &v)
	}
	return &c
}

// smaller yields plans that lack something, the largest parts first.
func (p *plan) smaller(yield func(*plan) bool) {
	try := func(change func(c *plan)) bool {
		c := p.clone()
		change(c)
		return yield(c)
	}
	for n := len(p.faults); n > 0; n /= 2 {
		for i := 0; i+n <= len(p.faults); i += n {
			if !try(func(c *plan) { c.faults = slices.Delete(c.faults, i, i+n) }) {
				return
			}
		}
	}
	for i := range p.pms {
		if !try(func(c *plan) { c.pms = slices.Delete(c.pms, i, i+1) }) {
			return
		}
	}
	for i, u := range p.pms {
		for n := len(u.ops); n > 0; n /= 2 {
			for k := 0; k+n <= len(u.ops); k += n {
				if !try(func(c *plan) { c.pms[i].ops = slices.Delete(c.pms[i].ops, k, k+n) }) {
					return
				}
			}
		}
	}
	for i := range p.users {
		if len(p.users) > 1 && !try(func(c *plan) { c.users = slices.Delete(c.users, i, i+1) }) {
			return
		}
	}
	for i, u := range p.users {
		for n := len(u.items); n > 0; n /= 2 {
			for k := 0; k+n <= len(u.items); k += n {
				if !try(func(c *plan) { c.users[i].items = slices.Delete(c.users[i].items, k, k+n) }) {
					return
				}
			}
		}
		for k, it := range u.items {
			if len(it.bounces) > 0 && !try(func(c *plan) { c.users[i].items[k].bounces = nil }) {
				return
			}
		}
	}
	for _, f := range []func(c *plan){func(c *plan) { c.patience = 0 }, func(c *plan) { c.ages = false }, func(c *plan) { c.batch, c.segment = 500, 1000 },
		func(c *plan) { c.lasts = 5 * time.Second }} {
		if !try(f) {
			return
		}
	}
}

// size orders plans.
func (p *plan) size() (n int) {
	n = len(p.faults) + len(p.users) + len(p.pms)
	for _, u := range p.pms {
		n += len(u.ops)
	}
	for _, u := range p.users {
		n += len(u.items)
		for _, it := range u.items {
			n += len(it.bounces)
		}
	}
	if p.patience > 0 {
		n++
	}
	if p.ages {
		n++
	}
	if p.batch != 500 || p.segment != 1000 {
		n++
	}
	return n
}

const shrinkTime = 20 * time.Second

// shrink looks for the smallest plan that still goes wrong in the same way, for a while.
func shrink(t *testing.T, p *plan, found, dir string) *plan {
	kind := kindOf(found)
	end := time.Now().Add(shrinkTime)
	for better := true; better && time.Now().Before(end); {
		better = false
		p.smaller(func(c *plan) bool {
			if c.size() < p.size() {
				if f, _ := play(t, c, dir, false); f != "" && kindOf(f) == kind {
					p, better = c, true
				}
			}
			return !better && time.Now().Before(end)
		})
	}
	return p
}

// kindOf is what a finding says, without its numbers.
func kindOf(found string) string {
	line, _, _ := strings.Cut(found, "\n")
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, line[:min(len(line), 40)])
}

// story is a finding with the smallest history that leads to it.
func story(t *testing.T, seed uint64, found, dir string) string {
	p := shrink(t, newPlan(seed), found, dir)
	found, w := play(t, p, dir, true)
	return fmt.Sprintf("seed %d: %s\n%s\n\nsee it again: make sim SEED=%d N=1", seed, found, w.history(), seed)
}
