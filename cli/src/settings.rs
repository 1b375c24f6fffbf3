//! The configuration in force, and where each value came from.

use gpumem::base::Error;
use gpumem::context::config::Config;
use gpumem::context::settings::SETTINGS;
use serde::Serialize;
use std::collections::BTreeMap;

/// One setting.
#[derive(Debug, Serialize)]
pub struct Setting {
    /// The environment variable that sets it.
    pub name: &'static str,
    /// The value in force.
    pub value: String,
    /// `default`, or the variable or option it came from.
    pub source: String,
}

/// Variables that are not understood, and why.
pub type Wrong = BTreeMap<&'static str, Error>;

/// Those of this process's environment, each looked at alone.
pub fn wrong() -> Wrong {
    let variables = SETTINGS.iter().flat_map(|s| [Some(s.variable), s.alias]).flatten();
    let alone = |variable| {
        let error = Config::from_lookup(&|name| std::env::var_os(name).filter(|_| name == variable)).err()?;
        Some((variable, error))
    };
    variables.filter_map(alone).collect()
}

/// Every setting of `config`, which was made from this process's environment, but for what is
/// `wrong` there; `backend_given` if `--backend` overrode that.
pub fn describe(config: &Config, wrong: &Wrong, backend_given: bool) -> Vec<Setting> {
    let setting = |s: &gpumem::context::settings::Setting| {
        // A VPMM page size sets either `GPUMEM_POOL` to off or a page size.
        let pages_only = s.variable == "GPUMEM_PAGE_SIZE" && !config.pool || s.variable == "GPUMEM_POOL" && config.pool;
        let alias = s.alias.filter(|_| !pages_only);
        let set = [Some(s.variable), alias].into_iter().flatten().find(|v| std::env::var_os(v).is_some());
        if let Some(variable) = set.filter(|v| wrong.contains_key(v)) {
            let value = format!("{:?}", std::env::var_os(variable).unwrap_or_default());
            return Setting { name: s.variable, value, source: format!("from {variable}, not understood") };
        }
        let source = match set {
            _ if s.variable == "GPUMEM_BACKEND" && backend_given => "from --backend".to_string(),
            Some(variable) => format!("from {variable}"),
            None => "default".to_string(),
        };
        Setting { name: s.variable, value: s.shown(config), source }
    };
    SETTINGS.iter().map(setting).collect()
}
