//! All outcomes as one page: without scripts or external parts, readable in dark and light.
//!
//! ```text
//!   page      the summary, then a section for each experiment
//!     xml     closed elements, escaped text: every page is well-formed XML
//!     bars    a panel as bars or dots, with whiskers over the range of the rounds
//!     heat    a panel as a grid of colours
//! ```

mod bars;
mod heat;
mod xml;

use crate::{AnswerFigure, ExperimentOutcome, Panel, PanelShape, Unit};
use xml::Xml;

const STYLE: &str = include_str!("page/style.css");

/// Returns the page.
pub fn page(outcomes: &[ExperimentOutcome]) -> String {
    let mut xml = Xml::new("<!DOCTYPE html>\n");
    xml.element("html", &[("lang", &"en")], |xml| {
        xml.element("head", &[], |xml| {
            xml.leaf("meta", &[("charset", &"utf-8")]);
            xml.leaf("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
            xml.leaf("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
            xml.line("title", &[], "Underseal: published experiments, measured again");
            xml.line("style", &[], STYLE);
        });
        xml.element("body", &[], |xml| {
            xml.element("main", &[], |xml| {
                head(xml, outcomes);
                summary(xml, outcomes);
                for outcome in outcomes {
                    section(xml, outcome);
                }
                footer(xml);
            });
        });
    });
    xml.finish()
}

fn head(xml: &mut Xml, outcomes: &[ExperimentOutcome]) {
    xml.line("h1", &[], "Published experiments, measured again");
    let mut machines: Vec<_> = outcomes.iter().map(|outcome| &outcome.machine).collect();
    machines.dedup();
    for machine in machines {
        let kernels = machine.kernels.join(", ");
        let text = format!(
            "{}; {} processors; AES in use: {} (of {kernels})",
            machine.cpu, machine.processors, machine.chosen
        );
        xml.line("p", &[("class", &"machine")], &text);
    }
    if outcomes.iter().any(|outcome| outcome.quick) {
        let text =
            "Rounds were cut short: this page shows that everything runs. Its figures are not to be kept.";
        xml.line("p", &[("class", &"warning")], text);
    }
}

fn summary(xml: &mut Xml, outcomes: &[ExperimentOutcome]) {
    xml.element("table", &[("class", &"summary")], |xml| {
        xml.element("thead", &[], |xml| {
            xml.element("tr", &[], |xml| {
                ["Experiment", "Question and answer", "Goals"]
                    .iter()
                    .for_each(|text| xml.line("th", &[], text));
            });
        });
        xml.element("tbody", &[], |xml| {
            for outcome in outcomes {
                xml.element("tr", &[], |xml| {
                    xml.element("td", &[], |xml| {
                        xml.line("a", &[("href", &format!("#{}", outcome.name))], &outcome.name);
                    });
                    xml.element("td", &[], |xml| {
                        xml.line("span", &[("class", &"question")], &outcome.question);
                        xml.line("span", &[("class", &"answer")], &outcome.answer);
                    });
                    xml.element("td", &[], |xml| chip(xml, outcome));
                });
            }
        });
    });
}

fn chip(xml: &mut Xml, outcome: &ExperimentOutcome) {
    let (met, all) = outcome.goals();
    let (class, text) = match (met, all) {
        (_, 0) => ("chip none", "no goal".to_owned()),
        (met, all) if met == all => ("chip met", format!("\u{2713} {met} of {all}")),
        (met, all) => ("chip missed", format!("\u{2717} {met} of {all}")),
    };
    xml.line("span", &[("class", &class)], &text);
}

fn section(xml: &mut Xml, outcome: &ExperimentOutcome) {
    xml.element("section", &[("id", &outcome.name)], |xml| {
        xml.line("h2", &[], &outcome.name);
        xml.line("p", &[("class", &"question")], &outcome.question);
        xml.line("p", &[("class", &"answer")], &outcome.answer);
        findings(xml, &outcome.findings);
        for panel in &outcome.panels {
            figure(xml, panel);
        }
        xml.element("dl", &[], |xml| {
            let published = &outcome.published;
            for (name, text) in
                [("Published", &published.figures), ("on", &published.setup), ("in", &published.source)]
            {
                xml.line("dt", &[], name);
                xml.line("dd", &[], text);
            }
            xml.line("dt", &[], "Here");
            xml.element("dd", &[], |xml| outcome.setup.iter().for_each(|line| xml.line("p", &[], line)));
            xml.line("dt", &[], "Rounds");
            let text = format!(
                "{}, interleaved, in {:.0} seconds; medians; spreads are from the least to the most of the rounds; what was measured while the \
                 machine itself stood still (a paused virtual processor) was measured again",
                outcome.rounds, outcome.seconds
            );
            xml.line("dd", &[], &text);
        });
    });
}

fn findings(xml: &mut Xml, findings: &[AnswerFigure]) {
    xml.element("table", &[("class", &"findings")], |xml| {
        xml.element("thead", &[], |xml| {
            xml.element("tr", &[], |xml| {
                let names = ["", "published", "measured", "spread", "goal", ""];
                names.iter().for_each(|text| xml.line("th", &[], text));
            });
        });
        xml.element("tbody", &[], |xml| {
            for finding in findings {
                let AnswerFigure { what, unit, published, measured, goal } = finding;
                xml.element("tr", &[], |xml| {
                    xml.line("th", &[("scope", &"row")], what);
                    xml.line("td", &[], &published.map_or_else(String::new, |v| unit.show(v)));
                    xml.line("td", &[("class", &"measured")], &unit.show(measured.median));
                    let spread = format!("{} .. {}", unit.number(measured.least), unit.number(measured.most));
                    xml.line("td", &[], &spread);
                    xml.line("td", &[], &goal.map_or_else(String::new, |goal| goal.show(*unit)));
                    xml.element("td", &[], |xml| match finding.met() {
                        Some(true) => xml.line("span", &[("class", &"chip met")], "\u{2713} reached"),
                        Some(false) => xml.line("span", &[("class", &"chip missed")], "\u{2717} missed"),
                        None => {}
                    });
                });
            }
        });
    });
}

fn figure(xml: &mut Xml, panel: &Panel) {
    xml.element("figure", &[], |xml| {
        xml.element("figcaption", &[], |xml| {
            xml.line("strong", &[], &panel.title);
            xml.text(&format!(" ({})", how_to_read(panel)));
            if let Some(note) = &panel.note {
                xml.leaf("br", &[]);
                xml.text(note);
            }
        });
        match panel.shape {
            PanelShape::Bars | PanelShape::Dots => bars::draw(xml, panel),
            PanelShape::Heat => heat::draw(xml, panel),
        }
        xml.element("details", &[], |xml| {
            xml.line("summary", &[], "figures");
            figures(xml, panel);
        });
    });
}

fn how_to_read(panel: &Panel) -> String {
    let scale = match panel.shape {
        PanelShape::Bars => "",
        PanelShape::Dots => ", logarithmic",
        PanelShape::Heat => ", as part of the best of its group",
    };
    format!("{}{scale}; {} is better", panel.unit.name(), if panel.more_is_better { "more" } else { "less" })
}

fn figures(xml: &mut Xml, panel: &Panel) {
    xml.element("table", &[], |xml| {
        xml.element("thead", &[], |xml| {
            xml.element("tr", &[], |xml| {
                xml.line("th", &[], "");
                panel.series.iter().for_each(|name| xml.line("th", &[], name));
            });
        });
        xml.element("tbody", &[], |xml| {
            for row in &panel.rows {
                xml.element("tr", &[], |xml| {
                    xml.line("th", &[("scope", &"row")], &name(row.group.as_deref(), &row.label));
                    for cell in &row.cells {
                        let text = cell.map_or_else(String::new, |cell| told(panel.unit, cell));
                        xml.line("td", &[], &text);
                    }
                });
            }
        });
    });
}

/// Returns a row's name with its group's.
fn name(group: Option<&str>, label: &str) -> String {
    group.map_or_else(|| label.to_owned(), |group| format!("{group}: {label}"))
}

/// A figure in words: the median, the spread, and the published figure.
fn told(unit: Unit, cell: crate::Cell) -> String {
    let range = cell.measured;
    let published = cell.published.map(|v| format!(", published {}", unit.show(v))).unwrap_or_default();
    format!(
        "{} ({} .. {}){published}",
        unit.show(range.median),
        unit.number(range.least),
        unit.number(range.most)
    )
}

fn footer(xml: &mut Xml) {
    xml.element("footer", &[], |xml| {
        xml.text(
            "Dots and bars are medians, whiskers run from the least to the most of all rounds, diamonds are what was \
             published. Made by ",
        );
        xml.line("code", &[], "underseal-lab run");
        xml.text(" and ");
        xml.line("code", &[], "underseal-lab report");
        xml.text(".");
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::example;

    fn parsed(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(page, options).unwrap()
    }

    #[test]
    fn a_page_is_well_formed_and_whole() {
        let outcome = example();
        let page = page(std::slice::from_ref(&outcome));
        let document = parsed(&page);
        let all = |name: &str| document.descendants().filter(|n| n.has_tag_name(name)).count();
        assert_eq!(all("svg"), outcome.panels.len());
        assert_eq!(all("section"), 1);
        assert_eq!(all("script") + all("link") + all("img"), 0, "nothing runs, nothing comes from elsewhere");
        let text: String = document.root().descendants().filter_map(|n| n.text()).collect();
        for part in [&outcome.question, &outcome.answer, &outcome.published.source, &outcome.machine.cpu] {
            assert!(text.contains(part.as_str()), "{part}");
        }
        assert!(text.contains("\u{2717} 1 of 2") && text.contains("not to be kept"));
    }

    #[test]
    fn what_results_say_stays_text() {
        let mut outcome = example();
        let hostile = "</style><script>alert(\"1\")</script>\u{0}\u{1b}&amp;'";
        outcome.name = hostile.into();
        outcome.answer = hostile.into();
        outcome.panels[0].title = hostile.into();
        outcome.panels[0].series[0] = hostile.into();
        outcome.panels[2].rows[0].label = hostile.into();
        let page = page(&[outcome]);
        assert!(!page.contains("<script"), "{page}");
        let document = parsed(&page);
        let shown = hostile.replace(['\0', '\u{1b}'], "?");
        let title = document.descendants().find(|n| n.has_tag_name("h2")).unwrap();
        assert_eq!(title.text(), Some(shown.as_str()));
    }

    #[test]
    fn nothing_is_a_page_too() {
        parsed(&page(&[]));
    }
}
