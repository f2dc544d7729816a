"""Many runs: searches over settings, recorded results and the page that shows them."""
