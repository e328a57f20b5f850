"""The life of attempts on a worker: started, watched, ended, and what follows from their end."""
