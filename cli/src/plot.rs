//! Plots of `replay` and `bench`, as SVG.

use crate::output::Target;
use gpumem::base::size::human;
use indicatif::HumanCount;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;

/// Okabe and Ito's blue and vermilion, which everybody can tell apart.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
const WIDTH: u32 = 1000;

/// The pool over some operations of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Operations so far.
    pub operations: u64,
    /// The most bytes live since the last sample.
    pub live: u64,
    /// Bytes of physical memory that the pool has mapped after the operations.
    pub mapped: u64,
}

/// Live and mapped bytes over the operations; `most_mapped` was mapped at once.
pub fn memory(to: &Target, title: &str, samples: &[Sample], most_mapped: u64) -> Result<(), Box<dyn Error>> {
    write(to, 420, |area| draw_memory(area, title, samples, most_mapped))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws and then writes, so that only writing can fail because of the file.
fn write(
    to: &Target,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    draw(&area)?;
    area.present()?;
    drop(area);
    // File names may contain characters that XML cannot represent.
    let kept = |c: char| c == '\n' || !(c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'));
    let svg = svg.replace(|c| !kept(c), "\u{fffd}");
    Ok(to.write(|out| out.write_all(svg.as_bytes()))?)
}

fn draw_memory(area: &Area<'_>, title: &str, samples: &[Sample], most_mapped: u64) -> Result<(), Box<dyn Error>> {
    let end = samples.last().map_or(1, |s| s.operations.max(1));
    let most_live = samples.iter().map(|s| s.live).max().unwrap_or(0);
    let most = most_live.max(most_mapped).max(1);
    // A unit in which ticks are round, and some space for the legend.
    let power = most.ilog2() / 10;
    let unit = (1_u64 << (10 * power)) as f64;
    let name = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].get(power as usize).unwrap_or(&"");
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(50)
        .y_label_area_size(80)
        .build_cartesian_2d(0..end, 0.0..1.3 * most as f64 / unit)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 15))
        .x_desc("operations")
        .x_label_formatter(&|n| HumanCount(*n).to_string())
        .y_label_formatter(&|n| format!("{n} {name}"))
        .draw()?;
    let line = |value: fn(&Sample) -> u64| samples.iter().map(move |s| (s.operations, value(s) as f64 / unit));
    let lines = [("live", most_live, line(|s| s.live)), ("mapped", most_mapped, line(|s| s.mapped))];
    for ((name, most, points), colour) in lines.into_iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("{name}, at most {}", human(most)))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 15))
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Bars with one scale.
pub struct Bars {
    /// What the bars show, with the unit.
    pub title: String,
    /// Each bar's name, length, and the length as text.
    pub bars: Vec<(String, f64, String)>,
}

/// Groups of bars, one below the other.
pub fn bars(to: &Target, title: &str, groups: &[Bars]) -> Result<(), Box<dyn Error>> {
    let lines: usize = groups.iter().map(|g| g.bars.len() + 2).sum();
    write(to, (lines as u32 + 2) * LINE as u32, |area| draw_bars(area, title, groups))
}

/// The height of a line of bars.
const LINE: i32 = 20;

fn draw_bars(area: &Area<'_>, title: &str, groups: &[Bars]) -> Result<(), Box<dyn Error>> {
    const LEFT: i32 = 260;
    const LONGEST: f64 = WIDTH as f64 - LEFT as f64 - 130.0;
    let text = |size: i32, anchor| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(title.to_string(), (12, LINE), text(20, HPos::Left)))?;
    let mut y = 2 * LINE;
    for group in groups {
        y += LINE;
        area.draw(&Text::new(group.title.clone(), (12, y), text(17, HPos::Left)))?;
        let most = group.bars.iter().map(|b| b.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, length, value) in &group.bars {
            y += LINE;
            let end = LEFT + (LONGEST * (length / most).clamp(0.0, 1.0)) as i32;
            area.draw(&Text::new(name.clone(), (LEFT - 8, y), text(15, HPos::Right)))?;
            area.draw(&Rectangle::new([(LEFT, y - 7), (end, y + 7)], COLOURS[0].filled()))?;
            area.draw(&Text::new(value.clone(), (end + 6, y), text(15, HPos::Left)))?;
        }
        y += LINE;
    }
    Ok(())
}
