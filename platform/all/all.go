// Package all opens a platform by its name. It knows which platforms there are,
// and nothing else of them. The contract is that of [platform.Platform].
package all

import (
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

// Default is the platform of who does not care.
const Default = host.Name

// Factories returns the platforms there are. A new one takes a line here.
func Factories() []platform.Factory {
	return []platform.Factory{
		host.Factory(),
	}
}

// Open returns the platform of that name for this rank of world; nil is
// [group.Solo]. Another name is an error that wraps [platform.ErrUnknown] and
// lists those there are.
func Open(name string, world group.Group) (platform.Platform, error) {
	f, err := platform.Choose(name, Factories()...)
	if err != nil {
		return nil, err
	}
	return f.New(world)
}

// FromEnv opens the platform that the environment variable CAIRN_PLATFORM names,
// or [Default].
func FromEnv(world group.Group) (platform.Platform, error) {
	return Open(platform.NameFromEnv(Default), world)
}
