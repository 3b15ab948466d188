//! Combinations of options. No I/O, no locks, no clock.

use rdmabox::{Address, ProviderKind};

use super::settings::{Settings, sweepable};
use crate::{
    Error, Result,
    load::{Load, OpKind},
};

/// Maximum number of combinations, so that a typing error does not start an endless run.
const MAX_CASES: usize = 10_000;

/// A varied parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Name of the parameter.
    pub name: String,
    /// Values of the parameter.
    pub values: Vec<Value>,
}

/// A value of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Label in the output.
    pub label: String,
    /// The options of this value.
    pub settings: Settings,
}

impl Dimension {
    /// Returns a dimension of one option and its values.
    pub fn of_option(name: &str, values: &[&str]) -> Dimension {
        let value = |text: &&str| Value {
            label: (*text).to_owned(),
            settings: Settings::from_pairs([(name, *text)]),
        };
        Dimension { name: name.to_owned(), values: values.iter().map(value).collect() }
    }

    /// Returns a dimension of labels and their options.
    pub fn of_settings(name: &str, values: &[(&str, &[(&str, &str)])]) -> Dimension {
        let value = |(label, pairs): &(&str, &[(&str, &str)])| Value {
            label: (*label).to_owned(),
            settings: Settings::from_pairs(pairs.iter().copied()),
        };
        Dimension { name: name.to_owned(), values: values.iter().map(value).collect() }
    }
}

/// Parses a sweep such as `threads=1,2,4 mode=single,hybrid`.
pub fn parse_sweep(text: &str) -> Result<Vec<Dimension>> {
    let usage = |text: String| Err(Error::usage(format!("--sweep: {text}")));
    let mut dimensions: Vec<Dimension> = Vec::new();
    for part in text.split_whitespace() {
        let Some((name, values)) = part.split_once('=') else {
            return usage(format!("{part:?} is not of the form option=value,value"));
        };
        let name = name.trim_start_matches("--");
        let known = sweepable();
        if !known.iter().any(|k| k == name) {
            return usage(format!("there is no {name:?} to vary; there are {}", known.join(", ")));
        }
        if dimensions.iter().any(|d| d.name == name) {
            return usage(format!("{name} is there twice"));
        }
        let values: Vec<&str> = values.split(',').collect();
        if values.iter().any(|value| value.is_empty()) {
            return usage(format!("{part:?} has an empty value"));
        }
        dimensions.push(Dimension::of_option(name, &values));
    }
    if dimensions.is_empty() {
        return usage("nothing to vary; write for example 'threads=1,2,4 mode=single,hybrid'".into());
    }
    Ok(dimensions)
}

/// Formats coordinates. A bare number is preceded by the name of its dimension.
pub fn describe(dimensions: &[String], coordinates: &[String]) -> String {
    let describe = |(name, label): (&String, &String)| {
        let bare = label.starts_with(|c: char| c.is_ascii_digit()) && !label.contains(' ');
        if bare { format!("{name} {label}") } else { label.clone() }
    };
    dimensions.iter().zip(coordinates).map(describe).collect::<Vec<_>>().join(", ")
}

/// One combination.
#[derive(Clone, Debug)]
pub struct Case {
    /// Labels, one per dimension.
    pub coordinates: Vec<String>,
    /// The load of the combination.
    pub load: Load,
}

/// All combinations.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Names of the dimensions.
    pub dimensions: Vec<String>,
    /// The combinations. The first dimension changes fastest, so the points of a chart line are
    /// adjacent.
    pub cases: Vec<Case>,
}

impl Matrix {
    /// Returns the providers of the requests, and marks software providers as such.
    pub fn carriers(&self) -> String {
        let mut software: Vec<String> = Vec::new();
        let mut rdma = false;
        for case in &self.cases {
            let name = case.load.provider.to_string();
            match case.load.provider {
                ProviderKind::Rdma => rdma = true,
                _ if software.contains(&name) => {}
                _ => software.push(name),
            }
        }
        let software = match software.as_slice() {
            [] => None,
            [only] => Some(format!("software provider {only}")),
            several => Some(format!("software providers {}", several.join(" and "))),
        };
        software.into_iter().chain(rdma.then(|| "RDMA".to_owned())).collect::<Vec<_>>().join(" and ")
    }

    /// Combines the values of all dimensions with `base`, and checks every load. Without dimensions
    /// there is one case.
    pub fn new(op: OpKind, base: &Settings, dimensions: &[Dimension], connect: &[Address]) -> Result<Matrix> {
        let count = dimensions.iter().try_fold(1usize, |n, d| n.checked_mul(d.values.len()));
        if count.is_none_or(|count| count > MAX_CASES) {
            return Err(Error::usage(format!("more than {MAX_CASES} combinations")));
        }
        let mut rows = vec![(Vec::new(), base.clone())];
        for dimension in dimensions.iter().rev() {
            rows = rows
                .iter()
                .flat_map(|(coordinates, settings)| {
                    dimension.values.iter().map(move |value| {
                        let coordinates = [std::slice::from_ref(&value.label), &coordinates[..]].concat();
                        (coordinates, settings.clone().with(&value.settings))
                    })
                })
                .collect();
        }
        let cases = rows
            .into_iter()
            .map(|(coordinates, settings)| {
                let load = Load::resolve(op, &settings.parse()?, connect)?;
                Ok(Case { coordinates, load })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Matrix { dimensions: dimensions.iter().map(|d| d.name.clone()).collect(), cases })
    }

    /// Returns the memory that a server needs for the largest case, in bytes.
    pub fn area(&self) -> u64 {
        self.cases.iter().map(|case| case.load.area).max().unwrap_or(0)
    }

    /// Returns the memory of the largest case, of servers and this process together. Servers that
    /// were started keep running.
    pub fn peak_memory(&self, servers_here: bool) -> u64 {
        let peers = self.cases.iter().map(|case| u64::from(case.load.peers)).max().unwrap_or(0);
        let buffers = self.cases.iter().map(|case| case.load.buffers()).max().unwrap_or(0);
        let servers = if servers_here { self.area().saturating_mul(peers) } else { 0 };
        servers.saturating_add(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_read() {
        let sweep = parse_sweep(" threads=1,2  --mode=single,hybrid ").unwrap();
        assert_eq!(
            sweep,
            [
                Dimension::of_option("threads", &["1", "2"]),
                Dimension::of_option("mode", &["single", "hybrid"])
            ]
        );
    }

    #[test]
    fn invalid_sweeps_are_refused() {
        for (text, says) in [
            ("", "nothing to vary"),
            ("threads", "not of the form"),
            ("rounds=1,2", "there is no \"rounds\" to vary; there are provider, size,"),
            ("threads=1,,2", "empty value"),
            ("threads=", "empty value"),
            ("threads=1 threads=2", "twice"),
        ] {
            let err = parse_sweep(text).unwrap_err();
            assert_eq!(err.exit_code(), 2, "{text:?}");
            assert!(err.to_string().contains(says), "{err}");
        }
    }

    #[test]
    fn all_combinations_in_order() {
        let sweep = parse_sweep("op=read,write size=4k,8k").unwrap();
        let base = Settings::from_pairs([("threads", "3"), ("size", "1k")]);
        let matrix = Matrix::new(OpKind::Read, &base, &sweep, &[]).unwrap();
        assert_eq!(matrix.dimensions, ["op", "size"]);
        let cases: Vec<_> = matrix.cases.iter().map(|c| (c.load.op, c.load.size, c.load.threads)).collect();
        let (read, write) = (OpKind::Read, OpKind::Write);
        assert_eq!(cases, [(read, 4096, 3), (write, 4096, 3), (read, 8192, 3), (write, 8192, 3)]);
        assert_eq!(matrix.cases[1].coordinates, ["write", "4k"]);
    }

    #[test]
    fn every_combination_is_checked_before_anything_runs() {
        let sweep = parse_sweep("op=read,send depth=1,4").unwrap();
        let err = Matrix::new(OpKind::Read, &Settings::default(), &sweep, &[]).unwrap_err();
        assert!(err.to_string().contains("a call is made one at a time"), "{err}");
        let many = ["1"; 101].join(",");
        let sweep = parse_sweep(&format!("threads={many} size={many}")).unwrap();
        let err = Matrix::new(OpKind::Read, &Settings::default(), &sweep, &[]).unwrap_err();
        assert!(err.to_string().contains("combinations"), "{err}");
    }

    #[test]
    fn bare_numbers_get_a_name() {
        let text = |s: &[&str]| s.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let described = describe(&text(&["size", "mode", "setting"]), &text(&["4k", "single", "1 QP"]));
        assert_eq!(described, "size 4k, single, 1 QP");
    }

    #[test]
    fn the_fullest_case_counts() {
        let sweep = parse_sweep("peers=1,3 area=1m,2m").unwrap();
        let base = Settings::from_pairs([("size", "4k"), ("depth", "4")]);
        let matrix = Matrix::new(OpKind::Read, &base, &sweep, &[]).unwrap();
        assert_eq!(matrix.area(), 2 << 20);
        assert_eq!((matrix.peak_memory(true), matrix.peak_memory(false)), ((6 << 20) + 16384, 16384));
    }
}
