"""New projects: copies of the templates beside this file, each runnable as it is and commented for its next change."""

from pathlib import Path

TEMPLATES = Path(__file__).with_name("templates")


class ProjectExists(RuntimeError):
    """A file of a new project is there already; nothing was written."""


def template_names() -> list[str]:
    return sorted(path.name for path in TEMPLATES.iterdir() if path.is_dir())


def write_project(folder: Path, template: str, name: str) -> list[Path]:
    """The files written. Raises ProjectExists rather than change any file."""
    source = TEMPLATES / template
    wanted = {
        folder / path.relative_to(source): path
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    existing = [path for path in wanted if path.exists()]
    if existing:
        raise ProjectExists(f"{existing[0]} is there already: choose another folder, or remove it first")
    for path, origin in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = origin.read_text(encoding="utf-8").replace("{{name}}", name).replace("{{folder}}", str(folder.resolve()))
        path.write_text(text, encoding="utf-8")
    return list(wanted)
