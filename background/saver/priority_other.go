//go:build !linux

package saver

func setPriority(int) {}

func nameProcess() {}
