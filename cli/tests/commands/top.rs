//! `gpumem top` on a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::gpumem;
use gpumem::observe::page::{self, Page};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A terminal of 80 columns: what drives it, and what programs have.
fn terminal() -> (File, OwnedFd) {
    let (mut driver, mut program) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both are written before they are read; no name and no settings are asked for.
    let made = unsafe { libc::openpty(&mut driver, &mut program, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(made, 0);
    // SAFETY: openpty gave both to this function alone.
    unsafe { (File::from_raw_fd(driver), OwnedFd::from_raw_fd(program)) }
}

/// Whether it gives lines, and shows what is typed.
fn gives_lines(terminal: &OwnedFd) -> bool {
    // SAFETY: all zeroes are a value of a struct of numbers.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the struct is this function's.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut settings) }, 0);
    settings.c_lflag & (libc::ICANON | libc::ECHO) == libc::ICANON | libc::ECHO
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn top(terminal: &OwnedFd) -> Child {
    let end = || Stdio::from(terminal.try_clone().unwrap());
    gpumem().arg("top").arg(std::process::id().to_string()).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let _page = Page::publish(page::path(std::process::id()), move || format!("{{\"unix_ms\":{}}}", now())).unwrap();
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let (mut driver, program) = terminal();
        assert!(gives_lines(&program));
        let mut child = top(&program);
        let shown = std::thread::spawn(move || {
            let mut text = Vec::new();
            // Ends with an error when nobody has the terminal any more.
            let _ = driver.read_to_end(&mut text);
            text
        });
        wait_until("raw mode", || !gives_lines(&program));
        // SAFETY: the child is not waited for yet, so the number is its own.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        assert!(child.wait().unwrap().success(), "by signal {signal}");
        assert!(gives_lines(&program), "after signal {signal}");
        drop(program);
        assert!(!shown.join().unwrap().is_empty());
    }
}

/// `./program & gpumem top`: the program takes its time to begin.
#[test]
fn a_process_that_has_just_begun_is_waited_for() {
    // Another process, as this one's page may be there.
    let mut sleeper = std::process::Command::new("sleep").arg("30").spawn().unwrap();
    let pid = sleeper.id();
    let top = gpumem().args(["top", "--json", &pid.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let page = Page::publish(page::path(pid), || "{\"unix_ms\":7}".to_string()).unwrap();
    let out = top.wait_with_output().unwrap();
    drop(page);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("\"unix_ms\":7"), "{out:?}");
}
