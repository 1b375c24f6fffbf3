# Reads the output of `cargo test -- --show-output` (stdout and stderr together) followed by one line
# `cargo exit status: N`, and ends with `P passed, F failed, S skipped`. Exits 1 when anything failed or nothing ran.
#
# P and F come from the `test result:` line of each test binary. A binary that ends badly without saying how many
# tests failed (a crash, or a failure after its last test) counts as one failure; one with a harness of its own that
# ends well without a result line, as one pass.
#
# S counts the lines that start with `skipped:`. A test that says nothing else was skipped and has not passed. One that says
# more has passed, and what it skipped were parts, such as the tests of a C program that it ran.

# The output of one test, between `---- NAME stdout ----` and the next.
function end_of_test() {
    if (skips > 0 && !says_more) passed--
    in_test = skips = says_more = 0
}

function end_of_binary() {
    end_of_test()
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

/^---- .* stdout ----$/ { end_of_test(); in_test = 1; next }
/^(successes|failures):$/ || /^test result: / { end_of_test() }

/^skipped: / { skipped++; if (in_test) skips++; next }

# With one test thread and no capture, the harness prints the test's name in front of its first line.
/^test [^ ]+ \.\.\. skipped: / { skipped++; passed-- }

in_test && NF > 0 { says_more = 1 }

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
