//! The options of mount(8) for SELinux labels. No I/O, no locks, no clock.

use clap::Args;

/// SELinux labels of a mount: each is a label, or none.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SecurityLabels {
    /// Label of all files, as in mount(8)
    #[arg(long, value_name = "LABEL", hide = true, value_parser = label)]
    context: Option<String>,

    /// Label of the file system, as in mount(8)
    #[arg(long, value_name = "LABEL", hide = true, value_parser = label)]
    fscontext: Option<String>,

    /// Label of files without one, as in mount(8)
    #[arg(long, value_name = "LABEL", hide = true, value_parser = label)]
    defcontext: Option<String>,

    /// Label of the root directory, as in mount(8)
    #[arg(long, value_name = "LABEL", hide = true, value_parser = label)]
    rootcontext: Option<String>,
}

impl SecurityLabels {
    /// Returns the names and values for the kernel.
    pub(super) fn for_kernel(&self) -> Vec<(&'static str, String)> {
        let SecurityLabels { context, fscontext, defcontext, rootcontext } = self;
        let all = [
            ("context", context),
            ("fscontext", fscontext),
            ("defcontext", defcontext),
            ("rootcontext", rootcontext),
        ];
        all.into_iter().filter_map(|(name, label)| Some((name, label.clone()?))).collect()
    }
}

/// Checks a label, which the kernel gets between quotes.
fn label(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(['"', '\0']) {
        true => Err("a label has the form user:role:type:level".into()),
        false => Ok(text.to_owned()),
    }
}
