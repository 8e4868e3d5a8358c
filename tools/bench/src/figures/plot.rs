//! The plots of a page, as SVG.
//!
//! It refuses nothing; a plot of nothing is not drawn. Bounded by: the results.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;

use super::cell::{Cell, thousands};
use super::comparison::{cells, median, servers};
use super::plan::ATLAS;
use super::results::{Measured, Results};
use crate::statistics::Median;

/// Size of a plot, pixels.
const SIZE: (u32, u32) = (860, 430);

/// Colours of the rivals; Atlas is black. From Okabe and Ito's palette for colour-blind readers.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(150, 110, 60),
    RGBColor(130, 130, 130),
];

/// A plot: a line for each server over some cells.
struct Plot<'a> {
    file: &'a str,
    title: String,
    x_title: &'a str,
    y_title: &'a str,
    columns: Vec<(String, Cell)>,
    value: fn(&Measured) -> f64,
}

/// Draws all plots of some results into a directory: `(file, title)` of each.
pub(crate) fn draw(results: &Results, directory: &Path) -> Result<Vec<(String, String)>> {
    let mut drawn = Vec::new();
    for plot in plots(results) {
        if plot.columns.len() < 2 {
            continue;
        }
        let path = directory.join(plot.file);
        plot.draw(results, &path)
            .with_context(|| format!("drawing {}", path.display()))?;
        drawn.push((plot.file.to_owned(), plot.title));
    }
    Ok(drawn)
}

fn plots(results: &Results) -> Vec<Plot<'static>> {
    let is_usual = |it: &Cell| it.every_seconds == 0 && it.loss_ppm == 0;
    let mut plots = Vec::new();
    for (is_tls, name, files) in [
        (
            false,
            "Plaintext",
            ["rate-plain.svg", "cost-plain.svg", "cached-plain.svg"],
        ),
        (
            true,
            "TLS 1.3",
            ["rate-tls.svg", "cost-tls.svg", "cached-tls.svg"],
        ),
    ] {
        let cold = cells(results, |it| {
            is_usual(it) && it.is_tls == is_tls && it.cached_percent == 0
        });
        let title = |it: &Cell| thousands(it.connections.into());
        let columns: Vec<_> = cold.iter().map(|it| (title(it), *it)).collect();
        let [rate, cost, cached] = files;
        let rate = Plot {
            file: rate,
            title: format!("{name} from a cold disk, one core: Gb/s"),
            x_title: "connections",
            y_title: "Gb/s of bodies",
            columns: columns.clone(),
            value: Measured::gbps,
        };
        let cost = Plot {
            file: cost,
            title: format!("{name} from a cold disk: what a GB costs the server's core"),
            x_title: "connections",
            y_title: "busy seconds for each GB",
            columns,
            value: Measured::cost,
        };
        let mut by_cache = cells(results, |it| is_usual(it) && it.is_tls == is_tls);
        let connections = by_cache.iter().find(|it| it.cached_percent > 0);
        let connections = connections.map(|it| it.connections);
        by_cache.retain(|it| Some(it.connections) == connections);
        let cached = Plot {
            file: cached,
            title: format!("{name} by what the page cache holds, one core: Gb/s"),
            x_title: "requests for cached objects, %",
            y_title: "Gb/s of bodies",
            columns: by_cache
                .iter()
                .map(|it| (it.cached_percent.to_string(), *it))
                .collect(),
            value: Measured::gbps,
        };
        plots.extend([rate, cost, cached]);
    }
    plots
}

impl Plot<'_> {
    /// The medians of a server, one for each column that it has a value at.
    fn line(&self, results: &Results, server: &str) -> Vec<(f64, Median)> {
        let columns = self.columns.iter().enumerate();
        columns
            .filter_map(|(index, (_, cell))| {
                #[expect(clippy::cast_precision_loss, reason = "a few columns")]
                let at = index as f64;
                Some((at, median(results, cell, server, self.value)?))
            })
            .collect()
    }

    fn draw(&self, results: &Results, path: &Path) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        for (_, cell) in &self.columns {
            for name in servers(results, cell) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let lines: Vec<_> = names
            .iter()
            .map(|name| (*name, self.line(results, name)))
            .collect();
        let values = lines.iter().flat_map(|(_, line)| line);
        let most = values.map(|(_, it)| it.high).fold(0.0, f64::max);
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        #[expect(clippy::cast_precision_loss, reason = "a few columns")]
        let right = self.columns.len() as f64;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(56)
            // The legend stands to the right of the last column.
            .build_cartesian_2d(-0.3..right + 0.5, 0.0..most * 1.08)
            .map_err(|error| failed(&error))?;
        let label = |at: &f64| {
            let near = at.round();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an index of a column"
            )]
            let index = near.max(0.0) as usize;
            let column = self.columns.get(index);
            column
                .filter(|_| (at - near).abs() < 1e-6 && near >= 0.0)
                .map_or_else(String::new, |(title, _)| title.clone())
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(2 * self.columns.len() + 3)
            .x_label_formatter(&label)
            .x_desc(self.x_title)
            .y_desc(self.y_title)
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(|error| failed(&error))?;
        let mut colours = COLOURS.iter().cycle();
        for (name, line) in lines {
            let (colour, width) = if name == ATLAS {
                (BLACK, 3)
            } else {
                (colours.next().copied().unwrap_or(BLACK), 1)
            };
            let style = colour.stroke_width(width);
            let points = line.iter().map(|(at, it)| (*at, it.middle));
            chart
                .draw_series(LineSeries::new(points, style).point_size(3))
                .map_err(|error| failed(&error))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            let bars = line
                .iter()
                .map(|(at, it)| PathElement::new([(*at, it.low), (*at, it.high)], style));
            chart.draw_series(bars).map_err(|error| failed(&error))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 12))
            .draw()
            .map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::turn;
    use super::*;
    use crate::stored::tests::environment;

    #[test]
    fn what_has_two_columns_is_drawn_with_its_names() {
        let mut turns = Vec::new();
        for connections in [64, 1000] {
            for server in ["atlas", "nginx-sendfile"] {
                let cell = Cell::cold(false, connections);
                turns.push(turn((server, 1), cell, (4, 2.0)));
            }
        }
        turns.push(turn(("atlas", 1), Cell::cold(true, 64), (4, 2.0)));
        let results = Results {
            environment: environment(),
            turns,
            stages: Vec::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let drawn = draw(&results, directory.path()).unwrap();
        let files: Vec<&str> = drawn.iter().map(|(file, _)| file.as_str()).collect();
        // Neither TLS at one number of connections nor anything cached.
        assert_eq!(files, ["rate-plain.svg", "cost-plain.svg"]);
        let text = std::fs::read_to_string(directory.path().join("rate-plain.svg")).unwrap();
        for word in ["atlas", "nginx-sendfile", "1,000", "connections", "Gb/s"] {
            assert!(text.contains(word), "{word}");
        }
        assert!(text.len() < 50_000, "{} bytes", text.len());
    }
}
