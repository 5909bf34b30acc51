"""Crash trials: real processes under kill -9, PostgreSQL under immediate stops, and a checker that trusts no one."""
