# Tools of the project: native build, code generation, demo and benchmarks.
