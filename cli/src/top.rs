//! `gpumem top`: the counters that a process publishes, live.

use crate::report;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use gpumem::base::size::human;
use gpumem::observe::page;
use ratatui::crossterm;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use ratatui::Frame;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Command line of `top`.
#[derive(clap::Args)]
pub struct Args {
    /// Prints the counters once, as JSON, and exits. This is the default when the output is not a
    /// terminal.
    #[arg(long)]
    json: bool,
    /// The process id; by default the only process that publishes counters. It may take up to three
    /// seconds to start publishing.
    #[arg(value_name = "PID")]
    pid: Option<u32>,
}

/// How often the page is read.
const PERIOD: Duration = Duration::from_millis(500);
/// A page not written for this long, ten times its period, may be that of a killed process.
const STALE: Duration = Duration::from_secs(1);
/// How long to wait for a process that publishes counters.
const PATIENCE: Duration = Duration::from_secs(3);
/// Points of the graph.
const PAST: usize = 240;

static ENDED: AtomicBool = AtomicBool::new(false);

/// Runs the command.
pub fn run(args: &Args) -> Result<bool, Box<dyn std::error::Error>> {
    let pid = wait_for(args.pid)?;
    if args.json || !std::io::stdout().is_terminal() {
        report::line(read(pid)?.0)?;
        return Ok(true);
    }
    let mut view = View::default();
    view.read(pid)?;
    // A signal ends it as a key does, and restores the terminal.
    ctrlc::set_handler(|| ENDED.store(true, Relaxed))?;
    let mut terminal = ratatui::try_init()?;
    let done = loop {
        if ENDED.load(Relaxed) {
            break Ok(true);
        }
        if let Err(e) = terminal.draw(|frame| view.draw(frame)) {
            break Err(e.into());
        }
        let pressed = match event::poll(PERIOD) {
            Ok(true) => event::read(),
            Ok(false) => Ok(Event::FocusGained),
            Err(e) => Err(e),
        };
        match pressed {
            Ok(Event::Key(key)) if ends(key) => break Ok(true),
            Ok(_) => {}
            Err(e) => break Err(e.into()),
        }
        // The process has ended, or withdrawn its page.
        if let Err(why) = view.read(pid) {
            view.gone = Some(why);
        }
    };
    ratatui::try_restore()?;
    done
}

/// Whether a key ends the display. The terminal makes no signal of Ctrl-C here.
fn ends(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Reads a process's page, as text and parsed. A killed process's page is refused; a process of
/// another container has no number here, but goes on writing.
fn read(pid: u32) -> Result<(String, Value), String> {
    let text = page::read(&page::path(pid)).map_err(|e| e.message)?;
    let page: Value = serde_json::from_str(&text).unwrap_or_default();
    let written = Duration::from_millis(page.get("unix_ms").and_then(Value::as_u64).unwrap_or(0));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if now.saturating_sub(written) > STALE && !runs(pid) {
        return Err(format!("process {pid} has ended, and left {} behind; remove it", page::path(pid).display()));
    }
    Ok((text, page))
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Waits until the process to show has a page: a new process has none yet.
fn wait_for(pid: Option<u32>) -> Result<u32, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = match pid {
            Some(pid) => Some(pid).filter(|&pid| page::path(pid).exists() || !runs(pid)),
            None => only()?,
        };
        match (found, pid) {
            (Some(found), _) => return Ok(found),
            (None, _) if Instant::now() < end => std::thread::sleep(PERIOD / 10),
            // Reading the page says what is wrong with it.
            (None, Some(pid)) => return Ok(pid),
            (None, None) => return Err("no process publishes counters; start one with GPUMEM_STATS_PAGE=on".into()),
        }
    }
}

/// The only process that has a page, if any has.
fn only() -> Result<Option<u32>, String> {
    let folder = page::path(0).parent().map(PathBuf::from).unwrap_or_default();
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let number = |name: &str| name.strip_prefix("gpumem.")?.strip_suffix(".stats")?.parse::<u32>().ok();
    let mut all: Vec<u32> = entries.flatten().filter_map(|e| number(&e.file_name().to_string_lossy())).collect();
    all.retain(|&pid| runs(pid));
    all.sort_unstable();
    match all.as_slice() {
        [pid] => Ok(Some(*pid)),
        [] => Ok(None),
        many => Err(format!("several processes publish counters: {many:?}; name one of them")),
    }
}

#[derive(Default)]
struct View {
    now: Value,
    before: Value,
    live: VecDeque<u64>,
    gone: Option<String>,
}

impl View {
    fn read(&mut self, pid: u32) -> Result<(), String> {
        let (_, now) = read(pid)?;
        self.before = std::mem::replace(&mut self.now, now);
        self.live.push_back(self.sum("live"));
        if self.live.len() > PAST {
            self.live.pop_front();
        }
        self.gone = None;
        Ok(())
    }

    fn of(page: &Value, name: &str) -> u64 {
        let devices = page.get("devices").and_then(Value::as_array).into_iter().flatten();
        devices.filter_map(|d| d.get("stats")?.get(name)?.as_u64()).sum()
    }

    fn sum(&self, name: &str) -> u64 {
        View::of(&self.now, name)
    }

    /// The increase of a counter per second.
    fn rate(&self, name: &str) -> f64 {
        let ms = |p: &Value| p.get("unix_ms").and_then(Value::as_u64).unwrap_or(0);
        let passed = ms(&self.now).saturating_sub(ms(&self.before)).max(1) as f64 / 1000.0;
        match self.before.is_null() {
            true => 0.0,
            false => self.sum(name).saturating_sub(View::of(&self.before, name)) as f64 / passed,
        }
    }

    fn draw(&self, frame: &mut Frame) {
        let [head, gauge, graph, numbers, heaps] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(3),
            Constraint::Length(7),
            Constraint::Length(9),
            Constraint::Min(3),
        ])
        .areas(frame.area());
        let pid = self.now.get("pid").and_then(Value::as_u64).unwrap_or(0);
        let backend = self.now.get("backend").and_then(Value::as_str).unwrap_or_default();
        let state = self.gone.as_deref().map_or(String::new(), |_| " — the process has ended".into());
        frame.render_widget(Paragraph::new(format!("gpumem: process {pid} ({backend}){state}; q ends")).bold(), head);
        let (live, mapped) = (self.sum("live"), self.sum("mapped"));
        let share = if mapped == 0 { 0.0 } else { (live as f64 / mapped as f64).clamp(0.0, 1.0) };
        let label =
            format!("{} live of {} mapped, peak {}", human(live), human(mapped), human(self.sum("peak_mapped")));
        let bar = Gauge::default().block(Block::bordered().title("memory")).ratio(share).label(label);
        frame.render_widget(bar.gauge_style(Style::new().cyan()), gauge);
        let past: Vec<u64> = self.live.iter().copied().collect();
        let line = Sparkline::default().block(Block::bordered().title("live bytes, two minutes")).data(past);
        frame.render_widget(line.style(Style::new().cyan()), graph);
        let rows = [
            (
                "allocations live",
                self.sum("allocations").to_string(),
                "mallocs a second",
                format!("{:.0}", self.rate("mallocs")),
            ),
            ("free, usable at once", human(self.sum("free")), "frees a second", format!("{:.0}", self.rate("frees"))),
            (
                "waiting for a stream",
                human(self.sum("waiting")),
                "growths a second",
                format!("{:.1}", self.rate("growths")),
            ),
            ("in stock", human(self.sum("stock")), "stitches a second", format!("{:.1}", self.rate("stitches"))),
            ("largest free block", human(self.sum("largest_free")), "growths", self.sum("growths").to_string()),
            (
                "fits without growth",
                human(self.sum("largest_without_growth")),
                "stitches",
                self.sum("stitches").to_string(),
            ),
            ("refused for lack", self.sum("out_of_memory").to_string(), "streams", self.sum("streams").to_string()),
        ];
        let rows = rows.map(|(a, b, c, d)| Row::new([a.to_string(), b, c.to_string(), d]));
        let widths = [Constraint::Length(22), Constraint::Length(14), Constraint::Length(20), Constraint::Min(8)];
        frame.render_widget(Table::new(rows, widths).block(Block::bordered().title("counters")), numbers);
        let devices = self.now.get("devices").and_then(Value::as_array).into_iter().flatten();
        let heap = |d: &Value, h: &Value| {
            let n = |i: usize| h.get(i).and_then(Value::as_u64).unwrap_or(0);
            let device = d.get("device").and_then(Value::as_u64).unwrap_or(0);
            Row::new([device.to_string(), n(0).to_string(), format!("{:#x}", n(1)), human(n(2)), human(n(3))])
        };
        let rows: Vec<Row> = devices
            .flat_map(|d| d.get("heaps").and_then(Value::as_array).into_iter().flatten().map(move |h| heap(d, h)))
            .collect();
        let widths = [8, 6, 20, 14, 14].map(Constraint::Length);
        let header = Row::new(["device", "heap", "stream", "live", "free"]).bold();
        frame.render_widget(Table::new(rows, widths).header(header).block(Block::bordered().title("heaps")), heaps);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;
    use serde_json::json;

    #[test]
    fn q_escape_and_ctrl_c_end_it() {
        let key = |code, modifiers| ends(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE) && key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL) && !key(KeyCode::Char('c'), KeyModifiers::NONE));
    }

    #[test]
    fn the_screen_shows_the_counters_and_rates() {
        let page = |ms: u64, mallocs: u64| {
            json!({"pid": 7, "backend": "host", "unix_ms": ms, "devices": [{"device": 0, "heaps": [[3, 16, 1 << 20, 0]],
                "stats": {"live": 1 << 20, "mapped": 4 << 20, "peak_mapped": 8 << 20, "mallocs": mallocs, "allocations": 12}}]})
        };
        let view = View { now: page(2000, 700), before: page(1000, 200), ..View::default() };
        let mut terminal = Terminal::new(TestBackend::new(90, 30)).unwrap();
        terminal.draw(|f| view.draw(f)).unwrap();
        let text: String = terminal.backend().buffer().content().iter().map(|c| c.symbol()).collect();
        for part in ["process 7 (host)", "1.00 MiB live of 4.00 MiB mapped, peak 8.00 MiB", "500", "0x10", "12"] {
            assert!(text.contains(part), "{part:?} is not on the screen: {text}");
        }
    }
}
