//! Who serves an agent, if its profile does not say: what is paused together when a provider takes
//! no more. Pure. Owns the table of clients and their providers; knows nothing of limits or pauses.

use std::str::FromStr;

use kennel_transcript::Format;

use super::{Client, Starts};

/// The provider of an agent of this name that starts this. One that nobody can tell is a provider
/// of its own: pausing others for it would be a guess.
pub(super) fn usual(name: &str, starts: &Starts) -> String {
    let known = match starts {
        Starts::Client { client, model, .. } => Some(of_client(*client, model.as_deref())),
        Starts::Command { words, format } => spoken(words, format.as_deref())
            .and_then(client_of)
            .map(|client| of_client(client, None)),
    };
    known.unwrap_or_else(|| format!("command:{name}"))
}

fn of_client(client: Client, model: Option<&str>) -> String {
    match client {
        Client::Claude => "anthropic".to_owned(),
        Client::Codex => "openai".to_owned(),
        Client::Gemini => "google".to_owned(),
        Client::Opencode => {
            let served_by = model.and_then(|model| model.split_once('/')).map(|(first, _)| first);
            served_by.filter(|first| !first.is_empty()).unwrap_or("opencode").to_owned()
        }
    }
}

/// Whose words a command speaks: as it says, or as its program is called.
fn spoken(words: &[String], format: Option<&str>) -> Option<Format> {
    match format {
        Some(name) => Format::from_str(name).ok(),
        None => words.first().and_then(|program| Format::guess(program)),
    }
}

/// The others are served by whom their users chose, which their name does not tell.
fn client_of(format: Format) -> Option<Client> {
    match format {
        Format::Claude => Some(Client::Claude),
        Format::Codex => Some(Client::Codex),
        Format::Gemini => Some(Client::Gemini),
        Format::Opencode => Some(Client::Opencode),
        Format::Qwen
        | Format::Copilot
        | Format::Goose
        | Format::Aider
        | Format::Amp
        | Format::Cursor => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::user;

    #[test]
    fn every_agent_has_a_provider_and_a_strange_command_one_of_its_own() {
        for (text, expected) in [
            ("kind = \"claude\"", "anthropic"),
            ("kind = \"codex\"\nmodel = \"a/b\"", "openai"),
            ("kind = \"gemini\"", "google"),
            ("kind = \"opencode\"", "opencode"),
            ("kind = \"opencode\"\nmodel = \"openrouter/x/y\"", "openrouter"),
            ("kind = \"opencode\"\nmodel = \"plain\"", "opencode"),
            ("kind = \"opencode\"\nmodel = \"/x\"", "opencode"),
            ("kind = \"claude\"\nprovider = \"bedrock\"", "bedrock"),
            ("command = [\"./agent\"]", "command:a"),
            ("command = [\"./agent\"]\nformat = \"codex\"", "openai"),
            ("command = [\"/opt/claude\", \"-p\"]", "anthropic"),
            ("command = [\"claude\"]\nformat = \"none\"", "command:a"),
            ("command = [\"aider\"]", "command:a"),
            ("command = [\"x\"]\nprovider = \"mine\"", "mine"),
        ] {
            let text = format!("[[agent]]\nname = \"a\"\n{text}");
            let agents = user("F", text.as_bytes()).expect("it reads").agents;
            assert_eq!(agents[0].provider, expected, "{text}");
        }
    }
}
