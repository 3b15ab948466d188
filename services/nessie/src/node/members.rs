//! The static list of nodes: a file with a number and an address in each line.

use std::path::Path;

use rdmabox::Address;

use crate::error::NessieError;

/// Most nodes of a deployment: a bit of one word for each.
pub const MAX_NODES: usize = 64;

/// The nodes of a deployment, in the order of their numbers: 0, 1, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    addresses: Vec<Address>,
}

impl Members {
    /// Makes a list; the position of an address is the number of the node.
    ///
    /// # Errors
    /// [`NessieError::Members`] for no nodes, or more than [`MAX_NODES`].
    pub fn new(addresses: Vec<Address>) -> Result<Members, NessieError> {
        match addresses.len() {
            0 => Err(NessieError::Members("no nodes".into())),
            count if count > MAX_NODES => {
                Err(NessieError::Members(format!("{count} nodes: at most {MAX_NODES}")))
            }
            _ => Ok(Members { addresses }),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`NessieError::Members`] names the file, the line and the fault.
    pub fn load(path: &Path) -> Result<Members, NessieError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| NessieError::Members(format!("{}: {e}", path.display())))?;
        Members::parse(&text).map_err(|e| match e {
            NessieError::Members(reason) => NessieError::Members(format!("{}: {reason}", path.display())),
            other => other,
        })
    }

    /// Reads the text of a file. A `#` begins a comment.
    ///
    /// # Errors
    /// [`NessieError::Members`] names the line and the fault.
    pub fn parse(text: &str) -> Result<Members, NessieError> {
        let mut addresses = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let fault = |reason: String| NessieError::Members(format!("line {number}: {reason}"));
            let (id, address) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| fault(format!("'{line}' is no number and address")))?;
            let id: usize = id.parse().map_err(|_| fault(format!("'{id}' is no number of a node")))?;
            if id != addresses.len() {
                return Err(fault(format!("node {id} where node {} is next", addresses.len())));
            }
            let address = address.trim();
            addresses.push(address.parse().map_err(|e| fault(format!("'{address}': {e}")))?);
        }
        Members::new(addresses)
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the address of a node.
    pub fn address(&self, node: u16) -> Option<&Address> {
        self.addresses.get(usize::from(node))
    }

    /// Returns the number of nodes that have to agree.
    pub(crate) fn majority(&self) -> usize {
        self.addresses.len() / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_has_a_line_for_each_node() {
        let members =
            Members::parse("# nodes\n0 10.0.0.1:7460\n\n1   unix:/run/nessie.sock # local\n").unwrap();
        assert_eq!(members.count(), 2);
        assert_eq!(members.address(1), Some(&"unix:/run/nessie.sock".parse().unwrap()));
        assert_eq!(members.address(2), None);
    }

    #[test]
    fn faults_name_the_line() {
        for (text, fault) in [
            ("", "nodes file: no nodes"),
            ("0", "nodes file: line 1: '0' is no number and address"),
            ("x 10.0.0.1:1", "nodes file: line 1: 'x' is no number of a node"),
            ("0 10.0.0.1:1\n2 10.0.0.2:1", "nodes file: line 2: node 2 where node 1 is next"),
        ] {
            assert_eq!(Members::parse(text).unwrap_err().to_string(), fault);
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails(text: String) {
            let _ = Members::parse(&text);
        }
    }
}
