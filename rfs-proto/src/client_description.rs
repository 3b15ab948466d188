//! The description of a client by itself when it attaches, for the server's log and status.
//!
//! The description is the text `client` of [`Request::Attach`](crate::Request::Attach): words for
//! the log, and behind them a JSON object. A server that does not know the object logs it with the
//! words. A client that sends no object is described by its words alone. So both versions work with
//! each other. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

/// Maximum length of each text in bytes. Longer texts are cut.
const MAX_TEXT: usize = 1024;

/// Description of a client. A client may say anything, so a server trusts none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientDescription {
    /// Program and version, such as `rfs-fuse 0.1.0`.
    #[serde(skip)]
    pub program: String,
    /// Process ID on its host.
    #[serde(skip)]
    pub pid: Option<u32>,
    /// Name of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Effective user ID of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The directory that it serves.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mount_point: String,
    /// Transport of the session, and why it is this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub transport: String,
    /// The mount outlives the process: the next process takes the session over. The server then
    /// keeps the session for the usual time, also if it sees the end of the process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outlives_process: bool,
}

impl ClientDescription {
    /// Returns the text for the request.
    pub fn to_text(&self) -> String {
        let ClientDescription { program, pid, user, .. } = self;
        let cut = |text: &String| text[..floor_char_boundary(text, MAX_TEXT)].to_owned();
        let object = ClientDescription {
            host: cut(&self.host),
            mount_point: cut(&self.mount_point),
            transport: cut(&self.transport),
            user: *user,
            outlives_process: self.outlives_process,
            ..ClientDescription::default()
        };
        let object = serde_json::to_string(&object).unwrap_or_default();
        match pid {
            Some(pid) => format!("{program}, process {pid} {object}"),
            None => format!("{program} {object}"),
        }
    }

    /// Parses the text of a request. Fields that the text does not have are empty.
    pub fn parse(text: &str) -> ClientDescription {
        let (words, object) = text.split_at(text.find('{').unwrap_or(text.len()));
        let told = serde_json::from_str(object).unwrap_or_default();
        let (program, pid) = words.split_once(", process ").unwrap_or((words, ""));
        let program = program.trim_end();
        ClientDescription {
            program: program[..floor_char_boundary(program, MAX_TEXT)].to_owned(),
            pid: pid.trim_end().parse().ok(),
            ..told
        }
        .cut()
    }

    fn cut(mut self) -> ClientDescription {
        for text in [&mut self.host, &mut self.mount_point, &mut self.transport] {
            text.truncate(floor_char_boundary(text, MAX_TEXT));
        }
        self
    }
}

/// Returns the last boundary of characters at or before `index`.
fn floor_char_boundary(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full() -> ClientDescription {
        ClientDescription {
            program: "rfs-fuse 0.1.0".into(),
            pid: Some(7),
            host: "node1".into(),
            user: Some(1000),
            mount_point: "/mnt/a {b}\"".into(),
            transport: "TCP via tcp:h:1 (not shared memory: another host)".into(),
            outlives_process: true,
        }
    }

    #[test]
    fn a_description_survives_its_text() {
        assert_eq!(ClientDescription::parse(&full().to_text()), full());
        let plain = ClientDescription { program: "x".into(), ..ClientDescription::default() };
        assert_eq!(plain.to_text(), "x {}");
        assert_eq!(ClientDescription::parse("x {}"), plain);
    }

    /// Clients of earlier versions send words only.
    #[test]
    fn words_without_an_object_are_understood() {
        let parsed = ClientDescription::parse("rfs-fuse 0.1.0, process 123");
        assert_eq!((parsed.program.as_str(), parsed.pid), ("rfs-fuse 0.1.0", Some(123)));
        assert_eq!(ClientDescription::parse(""), ClientDescription::default());
        assert_eq!(ClientDescription::parse("test {broken").program, "test");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = ClientDescription { mount_point: "ä".repeat(MAX_TEXT), ..full() };
        let text = long.to_text();
        assert!(text.len() < 2 * MAX_TEXT);
        assert_eq!(ClientDescription::parse(&text).mount_point, "ä".repeat(MAX_TEXT / 2));
        let rude = format!("p {{\"host\":\"{}\"}}", "h".repeat(10 * MAX_TEXT));
        assert_eq!(ClientDescription::parse(&rude).host.len(), MAX_TEXT);
    }

    proptest! {
        #[test]
        fn no_text_is_fatal(text in ".{0,200}") {
            ClientDescription::parse(&text);
        }
    }
}
