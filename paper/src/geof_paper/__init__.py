"""The paper's workspace: compared methods, studies, recorded results, benchmarks of speed."""
