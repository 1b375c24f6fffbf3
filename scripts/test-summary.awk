# Reads the output of `cargo test -- --show-output` (stdout and stderr together) followed by one line
# `cargo exit status: N`, and ends with `P passed, F failed, S skipped`. Exits 1 when anything failed or nothing ran.
#
# P and F come from the `test result:` line of each test binary. A binary that ends badly without saying how many
# tests failed (a crash, or a failure after its last test) counts as one failure; one with a harness of its own that
# ends well without a result line, as one pass. S counts the lines that start with `skipped:`.

function end_of_binary() {
    if (!running) return
    if (broken && !told_failure) failed++
    else if (!broken && !told) passed++
    running = 0
}

# The number before a word such as "passed;" on the current line.
function count_of(word,    i) {
    for (i = 2; i <= NF; i++) if ($i == word ";") return $(i - 1) + 0
    return 0
}

/^ +Running .*\(.*\)$/ || /^ +Doc-tests / {
    end_of_binary()
    running = 1; binaries++
    broken = told = told_failure = 0
}

/^test result: (ok|FAILED)\. [0-9]+ passed; / {
    told = 1
    passed += count_of("passed")
    failed += count_of("failed")
    ignored += count_of("ignored")
    if (count_of("failed") > 0) told_failure = 1
}

/^error: (test|doctest|bench) failed, to rerun pass / { broken = 1 }

# With one test thread the harness prints the test's name in front of its first line.
/^(test [^ ]+ \.\.\. )?skipped: / { skipped++ }

/^cargo exit status: [0-9]+$/ { status = $NF + 0; ended = 1 }

END {
    end_of_binary()
    if (ignored > 0) print "note: " ignored " tests are marked #[ignore] and did not run"
    if (!ended) { print "note: the test run was cut short"; failed++ }
    else if (status != 0 && failed == 0) { print "note: cargo failed with status " status "; see above"; failed++ }
    if (passed + failed == 0) print "note: no test was found"
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit (failed > 0 || passed == 0) ? 1 : 0
}
