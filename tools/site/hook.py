"""A hook of mkdocs: pages that are not in docs, and links to files that are not pages.

The pages link to each other and to files of the repository as GitHub shows them. On the site, links to
pages stay relative, and links to other files lead to GitHub.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md"}
PYTHON = "# Python API\n\n" + "\n\n".join(f"::: {name}" for name in ("cairn", "cairn.torch", "cairn.lightning", "cairn.transformers", "cairn.accelerate", "cairn.megatron", "cairn.torchtitan", "cairn.verl",
    "cairn.deepspeed", "cairn.axolotl", "cairn.vllm", "cairn.sglang"))
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages that are not in docs."""
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "python-api.md", content=PYTHON))
    return files


def on_page_markdown(markdown, page, config, files):
    """Changes links as the module says."""
    at = page.file.src_uri
    source = next((name for name, uri in PAGES.items() if uri == at), "docs/" + at)

    def link(m):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), m[1]))
        uri = PAGES.get(target, target.removeprefix("docs/"))
        if target.startswith("docs/") or target in PAGES:
            file = files.get_file_from_path(uri)
            if file is not None and not file.inclusion.is_excluded():
                return f"]({posixpath.relpath(uri, posixpath.dirname(at))}{m[2] or ''})"
        if not (ROOT / target).exists():
            raise ValueError(f"{source} links to {m[1]}, which is not there")
        return f"]({config.repo_url}/blob/main/{target}{m[2] or ''})"

    parts = FENCE.split(markdown)
    return "".join(p if i % 2 else LINK.sub(link, p) for i, p in enumerate(parts))
