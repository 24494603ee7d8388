"""Benchmarks: whole models beside eager and Inductor. In: case names. Out: data files in bench/results and a table."""
