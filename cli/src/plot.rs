//! Plots of `replay` and `bench`, as SVG.

use gpumem::base::size::human;
use indicatif::HumanCount;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

/// Okabe and Ito's blue and vermilion, which everybody can tell apart.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
const WIDTH: u32 = 1000;

/// The pool at a moment of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Operations so far.
    pub operations: u64,
    /// Bytes that the log has live.
    pub live: u64,
    /// Bytes of physical memory that the pool has mapped.
    pub mapped: u64,
}

/// Live and mapped bytes over the operations.
pub fn memory(to: &Path, title: &str, samples: &[Sample]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(to, (WIDTH, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let end = samples.last().map_or(1, |s| s.operations.max(1));
    let most = samples.iter().map(|s| s.live.max(s.mapped)).max().unwrap_or(0).max(1);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0..end, 0..most + most / 16)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("operations")
        .x_label_formatter(&|n| HumanCount(*n).to_string())
        .y_label_formatter(&|bytes| human(*bytes))
        .draw()?;
    let lines: [(&str, fn(&Sample) -> u64); 2] = [("live", |s| s.live), ("mapped", |s| s.mapped)];
    for ((name, value), colour) in lines.into_iter().zip(COLOURS) {
        let name = format!("{name}, at most {}", human(samples.iter().map(value).max().unwrap_or(0)));
        chart
            .draw_series(LineSeries::new(samples.iter().map(|s| (s.operations, value(s))), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(area.present()?)
}

/// Bars with one scale.
pub struct Bars {
    /// What they show, with the unit.
    pub title: String,
    /// The name of each, its length, and the text of that.
    pub bars: Vec<(String, f64, String)>,
}

/// Groups of bars, one below the other.
pub fn bars(to: &Path, title: &str, groups: &[Bars]) -> Result<(), Box<dyn Error>> {
    const LINE: i32 = 20;
    const LEFT: i32 = 260;
    const LONGEST: f64 = WIDTH as f64 - LEFT as f64 - 130.0;
    let lines: usize = groups.iter().map(|g| g.bars.len() + 2).sum();
    let area = SVGBackend::new(to, (WIDTH, (lines as u32 + 2) * LINE as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |size: i32, anchor| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(title.to_string(), (12, LINE), text(16, HPos::Left)))?;
    let mut y = 2 * LINE;
    for group in groups {
        y += LINE;
        area.draw(&Text::new(group.title.clone(), (12, y), text(14, HPos::Left)))?;
        let most = group.bars.iter().map(|b| b.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, length, value) in &group.bars {
            y += LINE;
            let end = LEFT + (LONGEST * (length / most).clamp(0.0, 1.0)) as i32;
            area.draw(&Text::new(name.clone(), (LEFT - 8, y), text(12, HPos::Right)))?;
            area.draw(&Rectangle::new([(LEFT, y - 7), (end, y + 7)], COLOURS[0].filled()))?;
            area.draw(&Text::new(value.clone(), (end + 6, y), text(12, HPos::Left)))?;
        }
        y += LINE;
    }
    Ok(area.present()?)
}
