package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// symbols is the number of different tokens: the characters of ASCII.
const symbols = 128

// corpus is the text to learn from, one token for each character.
type corpus []int64

// readCorpus reads a text, or generates one if path is empty.
func readCorpus(path string) (corpus, error) {
	text := story()
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	var c corpus
	for _, r := range text {
		if r >= symbols {
			r = '?'
		}
		c = append(c, int64(r))
	}
	return c, nil
}

// story returns a text with some structure to learn.
func story() string {
	pick := func(n *uint64, words ...string) string {
		*n = mix(*n)
		return words[*n%uint64(len(words))]
	}
	var b strings.Builder
	for n := uint64(1); b.Len() < 1<<14; {
		fmt.Fprintf(&b, "The %s %s %s the %s %s. ",
			pick(&n, "old", "tall", "grey", "small"), pick(&n, "walker", "shepherd", "raven", "stone"),
			pick(&n, "passes", "finds", "follows", "marks"), pick(&n, "steep", "hidden", "windy", "last"),
			pick(&n, "path", "ridge", "summit", "valley"))
	}
	return b.String()
}

// batch returns sequences first to first+count-1 of a step, each of time tokens, and the
// tokens that follow them. Which sequences a step has depends only on its number, so a job
// of another shape, or one that begins in the middle, sees the same data.
func (c corpus) batch(step, size, first, count, time int) (x, y *tensor.Tensor, err error) {
	if len(c) < time+1 {
		return nil, nil, fmt.Errorf("the text has %d characters; a sequence needs %d", len(c), time+1)
	}
	in, next := make([]int64, 0, count*time), make([]int64, 0, count*time)
	for i := range count {
		at := mix(uint64(step*size+first+i)) % uint64(len(c)-time)
		in = append(in, c[at:at+uint64(time)]...)
		next = append(next, c[at+1:at+1+uint64(time)]...)
	}
	if x, err = tensor.Of([]int64{int64(count), int64(time)}, in); err != nil {
		return nil, nil, err
	}
	y, err = tensor.Of([]int64{int64(count * time)}, next)
	return x, y, err
}

// mix returns a number that looks random but depends only on n: splitmix64.
func mix(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
